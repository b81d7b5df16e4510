package pipe

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/pipe/pipetest"
)

// leg is what one dial gets: a plan for the cable, and when its HELLO arrives.
type leg struct {
	pipetest.Plan
	dead bool          // cut before the first byte
	late time.Duration // until the accepting side reads the first byte
}

// world has the two ends of a pipe. The dials follow legs, and then cables that carry everything.
type world struct {
	dialling, accepting *Pipe
	legs                []leg

	mu     sync.Mutex
	dials  int
	cables []*pipetest.Cable
	refuse error            // of further dials
	caught chan<- *Incoming // gets the next transport instead of the accepting side

	arriving sync.WaitGroup // goroutines for the transports at the accepting side

	most atomic.Int64 // highest sum of what both ends charged
	now  atomic.Int64
}

const testResume = 5 * time.Minute

func newWorld(t testing.TB, window int, legs ...leg) *world {
	t.Helper()
	w := &world{legs: legs}
	cfg := Config{ID: ID{End: NewEnd(), Channels: 1}, Resume: testResume, Window: window, Charge: w.charge}
	var err error
	if w.accepting, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Dial = w.dial
	if w.dialling, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) charge(delta int64) {
	now := w.now.Add(delta)
	for {
		most := w.most.Load()
		if now <= most || w.most.CompareAndSwap(most, now) {
			return
		}
	}
}

func (w *world) dial(ctx context.Context) (net.Conn, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.refuse != nil {
		return nil, w.refuse
	}
	caught := w.caught
	var l leg
	if w.dials < len(w.legs) {
		l = w.legs[w.dials]
	}
	w.dials++
	c, near, other := pipetest.New(l.Plan)
	w.cables = append(w.cables, c)
	if l.dead {
		c.Cut()
	}
	w.arriving.Go(func() {
		time.Sleep(l.late)
		switch in, err := Hello(context.WithoutCancel(ctx), other); {
		case err != nil:
		case caught != nil:
			caught <- in
		default:
			w.accepting.Attach(in)
		}
	})
	return near, nil
}

// run runs both ends in a bubble, calls use, closes what use did not close, and returns how both ended.
func (w *world) run(t *testing.T, use func()) (dialling, accepting error) {
	t.Helper()
	var all sync.WaitGroup
	all.Go(func() { dialling = w.dialling.Run(t.Context()) })
	all.Go(func() { accepting = w.accepting.Run(t.Context()) })
	use()
	w.dialling.Close()
	w.accepting.Close()
	all.Wait()
	w.arriving.Wait()
	return dialling, accepting
}

// stream is what one end writes.
func stream(seed uint64, n int) []byte {
	b := make([]byte, n)
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], seed)
	rand.NewChaCha8(key).Read(b)
	return b
}

// write writes all of b in pieces of random lengths.
func write(p net.Conn, b []byte, r *rand.Rand, most int) error {
	for len(b) > 0 {
		n, err := p.Write(b[:min(len(b), 1+r.IntN(most))])
		if err != nil {
			return fmt.Errorf("with %d bytes to write: %w", len(b), err)
		}
		b = b[n:]
	}
	return nil
}

// expect reads exactly b.
func expect(p net.Conn, b []byte) error {
	got := make([]byte, len(b))
	n, err := io.ReadFull(p, got)
	if !bytes.Equal(got[:n], b[:n]) {
		return errors.New("other bytes arrived")
	}
	if err != nil {
		return fmt.Errorf("after %d of %d bytes: %w", n, len(b), err)
	}
	return nil
}

// exchange is a whole life of a pipe: both ends write and read at the same time; then the closer closes, and
// the other end reads io.EOF.
func (w *world) exchange(seed uint64, sizes [2]int, closer int) error {
	ends := [2]*Pipe{w.dialling, w.accepting}
	var errs [4]error
	var all sync.WaitGroup
	for i, p := range ends {
		sends, gets := stream(seed+uint64(i), sizes[i]), stream(seed+uint64(1-i), sizes[1-i])
		r := rand.New(rand.NewPCG(seed, uint64(10+i)))
		wrote := make(chan struct{})
		all.Go(func() {
			defer close(wrote)
			errs[i] = write(p, sends, r, 1+sizes[i]/4)
		})
		all.Go(func() {
			errs[2+i] = expect(p, gets)
			if i == closer {
				<-wrote
				p.Close()
				return
			}
			if n, err := p.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				errs[2+i] = errors.Join(errs[2+i], fmt.Errorf("%d bytes and %v instead of the end", n, err))
			}
		})
	}
	all.Wait()
	return errors.Join(errs[:]...)
}

// check runs an exchange over cables as the legs say, and checks the outcome and the memory.
func check(t *testing.T, seed uint64, window int, sizes [2]int, legs ...leg) *world {
	t.Helper()
	var w *world
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, window, legs...)
		dialling, accepting := w.run(t, func() {
			if err := w.exchange(seed, sizes, int(seed%2)); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
		// The end that closed may not learn that the other one knows.
		if dialling != nil || accepting != nil && !errors.Is(accepting, ErrExpired) {
			t.Errorf("seed %d: the ends returned %v and %v", seed, dialling, accepting)
		}
		// Of each of the four buffers, the window and two chunks that are not full.
		if most := int64(4 * (window + 2*4096)); w.most.Load() > most || w.now.Load() != 0 {
			t.Errorf("seed %d: %d bytes of memory, more than %d, or %d in the end", seed, w.most.Load(), most, w.now.Load())
		}
	})
	return w
}
