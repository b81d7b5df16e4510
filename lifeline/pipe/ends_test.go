package pipe

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/pipe/pipetest"
)

func TestConn(t *testing.T) {
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		w := newWorld(t, DefaultWindow)
		stop1, stop2 := testutil.Go(t.Context(), w.dialling.Run), testutil.Go(t.Context(), w.accepting.Run)
		return w.dialling, w.accepting, func() { stop1(); stop2() }, nil
	})
}

// TestForgotten: a pipe that was in use and is not known ends at once, and a new one is made instead only if
// the dialling side knows nothing of the old one either.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1<<20)
		w.run(t, func() {
			testutil.Must(t, w.exchangeByte())
			other, err := New(Config{ID: w.accepting.cfg.ID, Resume: time.Minute})
			testutil.Must(t, err)
			in := w.nextHello(t)
			if in.Fresh || in.ID != w.dialling.cfg.ID {
				t.Errorf("the second transport says %+v", in)
			}
			in.Forget()
			<-w.dialling.Done()
			if _, err := w.dialling.Read(make([]byte, 1)); err != ErrForgotten {
				t.Errorf("Read after the other end forgot: %v", err)
			}
			if _, err := w.dialling.Write([]byte("x")); err != ErrForgotten {
				t.Errorf("Write after the other end forgot: %v", err)
			}
			other.Close()
		})
	})
}

// exchangeByte makes sure that the first transport is in use.
func (w *world) exchangeByte() error {
	if _, err := w.dialling.Write([]byte("a")); err != nil {
		return err
	}
	return expect(w.accepting, []byte("a"))
}

// nextHello cuts the transport, and returns the next one instead of giving it to the accepting side.
func (w *world) nextHello(t *testing.T) *Incoming {
	caught := make(chan *Incoming, 1)
	w.mu.Lock()
	w.caught = caught
	w.cables[len(w.cables)-1].Cut()
	w.mu.Unlock()
	return <-caught
}

// TestFresh: the dialling side begins again when the answer to its first HELLO was lost.
func TestFresh(t *testing.T) {
	l := leg{}
	l.CutAfter[1] = 3
	check(t, 1, 1<<16, [2]int{100, 100}, l)
}

// TestExpired: without a transport both sides end after the time to resume, counted from the loss.
func TestExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1<<20)
		broken := errors.New("no link")
		dialling, accepting := w.run(t, func() {
			testutil.Must(t, w.exchangeByte())
			time.Sleep(time.Hour) // an idle pipe stays
			w.mu.Lock()
			w.refuse = broken
			w.cables[0].Cut()
			w.mu.Unlock()
			began := time.Now()
			_, err := w.dialling.Read(make([]byte, 1))
			if after := time.Since(began); after != testResume || !errors.Is(err, ErrExpired) || !errors.Is(err, broken) {
				t.Errorf("after %s Read returned %v", after, err)
			}
			_, err = w.accepting.Read(make([]byte, 1))
			if after := time.Since(began); after != testResume || !errors.Is(err, ErrExpired) {
				t.Errorf("after %s Read of the accepting side returned %v", after, err)
			}
		})
		if !errors.Is(dialling, ErrExpired) || !errors.Is(accepting, ErrExpired) {
			t.Errorf("the ends returned %v and %v", dialling, accepting)
		}
	})
}

// TestNewestWins: a transport that was dialled later replaces the current one, even if that works, and one that
// was dialled earlier does not.
func TestNewestWins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1<<20)
		w.run(t, func() {
			testutil.Must(t, w.exchangeByte())
			attempt := w.dialling.attempt
			for _, c := range []struct {
				attempt uint64
				wins    bool
			}{{attempt - 1, false}, {attempt, false}, {attempt + 3, true}, {attempt + 2, false}} {
				_, near, other := pipetest.New(pipetest.Plan{})
				h := hello{version, resuming, w.dialling.cfg.ID, c.attempt, position{0, 0}, 1 << 20}
				h.Position = w.accepting.peerPosition()
				_, err := near.Write(h.append(nil))
				testutil.Must(t, err)
				in, err := Hello(t.Context(), other)
				testutil.Must(t, err)
				w.accepting.Attach(in)
				answer, err := readHello(near)
				if c.wins != (err == nil && answer.Status == known) {
					t.Errorf("attempt %d after %d: %+v, %v", c.attempt, attempt, answer, err)
				}
				synctest.Wait()
				if c.wins {
					near.Close() // so that the dialling side comes back
					w.dialling.begin(c.attempt)
				}
				testutil.Must(t, w.exchangeByte())
			}
		})
	})
}

// peerPosition is a position that the other end may name now.
func (p *Pipe) peerPosition() position {
	p.mu.Lock()
	defer p.mu.Unlock()
	return position{p.state.out.Start(), p.state.peerRead}
}

// TestSwallowing: a half-open transport is replaced after KeepAlive and Patience, and an idle pipe sends a
// byte now and then.
func TestSwallowing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		swallows := leg{}
		swallows.Swallow = true
		w := newWorld(t, 1<<20, leg{}, swallows)
		w.run(t, func() {
			testutil.Must(t, w.exchangeByte())
			time.Sleep(time.Second)
			before := w.cables[0].Carried()
			time.Sleep(time.Hour)
			after := w.cables[0].Carried()
			bytes := after[0] + after[1] - before[0] - before[1]
			if most := 4 * int(time.Hour/DefaultKeepAlive); w.dials != 1 || bytes > most || bytes < most/4 {
				t.Errorf("an idle pipe sent %d bytes in an hour, at most %d are right; %d dials", bytes, most, w.dials)
			}
			w.cables[0].Cut()
			synctest.Wait()
			time.Sleep(time.Second)
			w.cables[1].Cut() // from here on it swallows
			began := time.Now()
			testutil.Must(t, w.exchangeByte())
			if took := time.Since(began); took > DefaultKeepAlive+DefaultPatience {
				t.Errorf("a swallowing transport was in use for %s", took)
			}
		})
		if got := w.dialling.Stats().Resumed; got != 2 {
			t.Errorf("the pipe resumed %d times", got)
		}
	})
}

// TestVersion: an end of another version ends the dialling side, and does not wait.
func TestVersion(t *testing.T) {
	for _, answers := range []byte{0, version + 1} {
		synctest.Test(t, func(t *testing.T) {
			p, err := New(Config{ID: ID{Channels: 1}, Resume: time.Minute, Dial: func(context.Context) (net.Conn, error) {
				_, near, other := pipetest.New(pipetest.Plan{})
				go func() {
					io.ReadFull(other, make([]byte, helloSize))
					other.Write(hello{Version: answers, Status: known}.append(nil))
				}()
				return near, nil
			}})
			testutil.Must(t, err)
			if err := p.Run(t.Context()); err != ErrVersion {
				t.Errorf("the pipe ended with %v", err)
			}
		})
	}
	_, near, other := pipetest.New(pipetest.Plan{})
	_, err := near.Write(hello{Version: version + 1, Status: fresh}.append(nil))
	testutil.Must(t, err)
	if _, err := Hello(t.Context(), other); err != ErrVersion {
		t.Errorf("the accepting side got a HELLO of another version: %v", err)
	}
	if h, err := readHello(near); err != nil || h.Version != version || h.Status != forgotten {
		t.Errorf("the answer is %+v, %v", h, err)
	}
}

// TestHelloTimeout: a connection that says nothing does not hold its goroutine.
func TestHelloTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, near, other := pipetest.New(pipetest.Plan{})
		began := time.Now()
		_, err := Hello(t.Context(), other)
		if took := time.Since(began); err == nil || took != helloTimeout {
			t.Errorf("after %s: %v", took, err)
		}
		if _, err := near.Write([]byte("x")); err == nil {
			t.Error("the connection is open")
		}
	})
}

// TestContext: the end of the context closes the pipe in order if there is a transport, and at once if not.
func TestContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1<<20)
		stop, accepting := testutil.Go(t.Context(), w.dialling.Run), testutil.Go(t.Context(), w.accepting.Run)
		testutil.Must(t, w.exchangeByte())
		began := time.Now()
		if err := stop(); err != nil || time.Since(began) > ackDelay {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if _, err := w.accepting.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("Read of the other end: %v", err)
		}
		if _, err := w.accepting.Write([]byte("x")); err != io.ErrClosedPipe {
			t.Errorf("Write of the other end: %v", err)
		}
		testutil.Must(t, accepting())

		w = newWorld(t, 1<<20)
		w.refuse = errors.New("no link")
		began = time.Now()
		stop = testutil.Go(t.Context(), w.dialling.Run)
		if err := stop(); !errors.Is(err, context.Canceled) || time.Since(began) != 0 {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		if _, err := w.dialling.Read(make([]byte, 1)); err != net.ErrClosed {
			t.Errorf("Read after the end: %v", err)
		}
	})
}

// TestBackPressure: without a transport a writer waits until its deadline, and nothing is lost.
func TestBackPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1<<20)
		w.run(t, func() {
			testutil.Must(t, w.exchangeByte())
			w.mu.Lock()
			w.refuse = errors.New("no link")
			w.cables[0].Cut()
			w.mu.Unlock()
			all := stream(1, 4<<20)
			w.dialling.SetWriteDeadline(time.Now().Add(time.Minute))
			n, err := w.dialling.Write(all)
			if !errors.Is(err, os.ErrDeadlineExceeded) || n > unsentMost {
				t.Errorf("without a transport %d bytes were accepted: %v", n, err)
			}
			w.dialling.SetWriteDeadline(time.Time{})
			w.mu.Lock()
			w.refuse = nil
			w.mu.Unlock()
			var both sync.WaitGroup
			both.Go(func() { w.dialling.Write(all[n:]) })
			both.Go(func() { testutil.Must(t, expect(w.accepting, all)) })
			both.Wait()
		})
	})
}

func TestConfig(t *testing.T) {
	good := Config{ID: ID{Channels: 1}, Resume: time.Second}
	if _, err := New(good); err != nil {
		t.Error(err)
	}
	for what, change := range map[string]func(*Config){
		"no resume":   func(c *Config) { c.Resume = 0 },
		"no channels": func(c *Config) { c.ID.Channels = 0 },
		"window":      func(c *Config) { c.Window = -1 },
		"keepalive":   func(c *Config) { c.KeepAlive = -1 },
		"patience":    func(c *Config) { c.Patience = -1 },
	} {
		c := good
		if change(&c); c.validate() == nil {
			t.Errorf("%s: the configuration is accepted", what)
		}
	}
}
