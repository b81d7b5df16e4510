package mux

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/pipe/pipetest"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

var seed = flag.Uint64("seed", 0, "of the random cases; 0: another one in each run")

// script says what one end of a stream does: it writes some bytes, and then closes its half or resets. Reads go
// on at the same time, with pauses.
type script struct {
	writes []byte
	resets wire.Refusal // 0: CloseWrite
	slow   time.Duration
}

// scriptOf makes the script of an end from the number of its flow.
func scriptOf(seed uint64, n int, opener bool) script {
	side := uint64(2 * n)
	if opener {
		side++
	}
	r := rand.New(rand.NewPCG(seed, side))
	s := script{writes: make([]byte, r.IntN(1+r.IntN(300_000)))}
	var key [32]byte
	binary.BigEndian.PutUint64(key[:], side)
	rand.NewChaCha8(key).Read(s.writes)
	if r.IntN(5) == 0 {
		s.resets = wire.Refusal(1 + r.IntN(6))
	}
	if r.IntN(3) == 0 {
		s.slow = time.Duration(r.IntN(200)) * time.Millisecond
	}
	return s
}

// play acts one end, and compares what it sees with the script of the other.
func play(st wire.Stream, own, other script, r *rand.Rand) error {
	defer st.Close()
	var wrote error
	var writer sync.WaitGroup
	writer.Go(func() {
		left := own.writes
		for len(left) > 0 && wrote == nil {
			var n int
			n, wrote = st.Write(left[:min(len(left), 1+r.IntN(100_000))])
			left = left[n:]
		}
		if own.resets != 0 {
			st.Reset(own.resets)
		} else if wrote == nil {
			wrote = st.CloseWrite()
		}
	})
	var got []byte
	buf := make([]byte, 20_000)
	var read error
	for read == nil {
		time.Sleep(own.slow)
		var n int
		n, read = st.Read(buf)
		got = append(got, buf[:n]...)
	}
	writer.Wait()
	if !bytes.HasPrefix(other.writes, got) {
		return fmt.Errorf("read %d bytes that were not written", len(got))
	}
	reset := wire.Error{Refusal: other.resets}
	switch {
	case own.resets != 0: // all may end at any point
	case other.resets != 0:
		if read != reset || wrote != nil && wrote != reset {
			return fmt.Errorf("a reset with %v was seen as %v and %v", other.resets, read, wrote)
		}
	case read != io.EOF || wrote != nil || len(got) != len(other.writes):
		return fmt.Errorf("read %d of %d bytes: %v; wrote: %v", len(got), len(other.writes), read, wrote)
	}
	return nil
}

// TestRandomStreams: streams that both ends open, write, close and reset, over links that are cut, behave as
// their scripts say.
func TestRandomStreams(t *testing.T) {
	first, n := *seed, 20
	if first == 0 {
		first = rand.Uint64() >> 1
	}
	if most, err := strconv.Atoi(os.Getenv("BOWLINE_MUX_CASES")); err == nil {
		n = most
	}
	t.Logf("%d cases; repeat them with -seed=%d", n, first)
	for i := range uint64(n) {
		synctest.Test(t, func(t *testing.T) { randomStreams(t, first+i) })
		if t.Failed() {
			t.Fatalf("the case of -seed=%d failed", first+i)
		}
	}
}

func randomStreams(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0))
	w := newWorld(t, Config{Pipes: 1 + r.IntN(3)})
	cuts := 20
	w.plan = func(channel int) (p pipetest.Plan) {
		p.Capacity = 1 << (6 + r.IntN(10))
		if cuts--; cuts > 0 && channel > 0 {
			p.CutAfter[r.IntN(2)] = 100 + r.IntN(200_000)
			p.Swallow = r.IntN(4) == 0
		}
		return p
	}
	exit, helper, stop := w.connect(t)
	streams := 1 + r.IntN(30)
	var all sync.WaitGroup
	act := func(st wire.Stream, opener bool) {
		n := int(st.Flow().Src.Port())
		all.Go(func() {
			own, other := scriptOf(seed, n, opener), scriptOf(seed, n, !opener)
			side := uint64(2 * n)
			if opener {
				side++
			}
			if err := play(st, own, other, rand.New(rand.NewPCG(seed, 1<<32+side))); err != nil {
				t.Errorf("seed %d, stream %d, opener %t: %v", seed, n, opener, err)
			}
		})
	}
	for _, s := range []*Session{exit, helper} {
		all.Go(func() {
			for {
				st, err := s.Accept(t.Context())
				if err != nil {
					return
				}
				act(st, false)
			}
		})
	}
	for i := range streams {
		from := exit
		if r.IntN(2) == 0 {
			from = helper
		}
		st, err := from.Open(t.Context(), flow(i))
		if err != nil {
			t.Errorf("seed %d: open: %v", seed, err)
			break
		}
		act(st, true)
		time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
	}
	for began := time.Now(); exit.Stats().Flows+helper.Stats().Flows > 0; time.Sleep(time.Second) {
		if err := errors.Join(exit.Err(), helper.Err()); err != nil || time.Since(began) > time.Hour {
			t.Errorf("seed %d: after %s %d and %d streams are left: %v", seed, time.Since(began), exit.Stats().Flows, helper.Stats().Flows, err)
			break
		}
	}
	stop()
	<-helper.Done()
	all.Wait()
	synctest.Wait()
	if w.charged.Load() != 0 {
		t.Errorf("seed %d: %d bytes stay charged", seed, w.charged.Load())
	}
}
