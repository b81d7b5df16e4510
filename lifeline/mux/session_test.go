package mux

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/pipe"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// TestCut: a cut that is shorter than the time to resume breaks nothing; after a longer one each stream fails,
// all at the same time.
func TestCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		exit, helper, _ := w.connect(t)
		var ends []wire.Stream
		for i := range 20 {
			a, b := open(t, helper, exit, i)
			ends = append(ends, a, b)
		}
		w.cut(errors.New("no link"))
		for _, st := range ends {
			send(t, st, "during the cut")
		}
		time.Sleep(DefaultResume - 2*time.Second)
		w.cut(nil)
		time.Sleep(3 * time.Second) // the longest pause between two dials
		for _, st := range ends {
			got := make([]byte, len("during the cut"))
			if _, err := io.ReadFull(st, got); err != nil || string(got) != "during the cut" {
				t.Errorf("after a short cut Read returned %q, %v", got, err)
			}
		}
		if got := exit.Stats(); got.Attached != 5 || got.Resumed != 5 {
			t.Errorf("%d pipes are attached, and they resumed %d times", got.Attached, got.Resumed)
		}
		w.cut(errors.New("no link"))
		began := time.Now()
		for _, st := range ends {
			rest(t, st, "", broken)
			if _, err := st.Write([]byte("x")); err != broken {
				t.Errorf("after a long cut Write returned %v", err)
			}
		}
		if took := time.Since(began); took != DefaultResume {
			t.Errorf("the streams failed after %s", took)
		}
		for _, s := range []*Session{exit, helper} {
			if err := s.Err(); !errors.Is(err, pipe.ErrExpired) {
				t.Errorf("the session ended with %v", err)
			}
			if _, err := s.Accept(t.Context()); err != s.Err() {
				t.Errorf("Accept returned %v", err)
			}
		}
	})
}

// TestClosedSession: the other end learns it at once.
func TestClosedSession(t *testing.T) {
	for _, closer := range []string{"exit", "helper", "context"} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, Config{})
			exit, helper, stop := w.connect(t)
			a, b := open(t, helper, exit, 1)
			began := time.Now()
			other := helper
			switch closer {
			case "exit":
				exit.Close()
			case "helper":
				helper.Close()
				other = exit
			case "context":
				stop()
			}
			<-other.Done()
			rest(t, a, "", broken)
			rest(t, b, "", broken)
			if took := time.Since(began); took > 100*time.Millisecond || other.Err() != ErrEnded {
				t.Errorf("closed by the %s: the other end learned after %s: %v", closer, took, other.Err())
			}
		})
	}
}

// TestNewEnd: a new exit replaces the former one, which ends and does not come back.
func TestNewEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		exit, helper, _ := w.connect(t)
		a, b := open(t, helper, exit, 1)
		exit2, helper2, _ := w.connect(t)
		<-helper.Done()
		<-exit.Done()
		rest(t, a, "", broken)
		rest(t, b, "", broken)
		if helper.Err() != ErrReplaced {
			t.Errorf("the former session of the helper ended with %v", helper.Err())
		}
		time.Sleep(time.Hour)
		c, d := open(t, helper2, exit2, 2)
		send(t, c, "hello")
		c.CloseWrite()
		rest(t, d, "hello", io.EOF)
	})
}

// TestForgotten: after a restart of the helper the exit learns at once that all flows are gone.
func TestForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		exit, helper, _ := w.connect(t)
		a, b := open(t, exit, helper, 1)
		// Another helper has the listener from here on.
		w2 := newWorld(t, Config{})
		w.mu.Lock()
		w.listener = w2.listener
		w.mu.Unlock()
		w.cut(nil)
		began := time.Now()
		rest(t, a, "", broken)
		if took := time.Since(began); took > time.Second || !errors.Is(exit.Err(), pipe.ErrForgotten) {
			t.Errorf("after %s the exit ended with %v", took, exit.Err())
		}
		rest(t, b, "", broken) // when it expires
	})
}

// TestHandlerReturns: the session ends with its handler, and the next one is served.
func TestHandlerReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, handled := newListener(), 0
		s, err := NewServer(Config{}, l, func(context.Context, *Session) { handled++ })
		testutil.Must(t, err)
		stop := testutil.Go(t.Context(), s.Run)
		w := &world{listener: l}
		for range 3 {
			exit, err := Client(Config{}, w.dial)
			testutil.Must(t, err)
			// A pipe that was not answered yet finds that its session has ended.
			if err := exit.Run(t.Context()); err != ErrEnded && !errors.Is(err, pipe.ErrForgotten) {
				t.Errorf("the session ended with %v", err)
			}
		}
		if err := stop(); !errors.Is(err, context.Canceled) || handled != 3 {
			t.Errorf("the server ended with %v after %d sessions", err, handled)
		}
	})
}

func TestListenerFails(t *testing.T) {
	l := newListener()
	s, err := NewServer(Config{}, l, func(context.Context, *Session) {})
	testutil.Must(t, err)
	l.Close()
	if err := s.Run(t.Context()); err != net.ErrClosed {
		t.Errorf("the server ended with %v", err)
	}
}

// TestIdle: an idle lifeline sends at most 512 bytes a second, with what SSH, TCP and IP add to each write.
func TestIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		w.connect(t)
		time.Sleep(time.Minute)
		before := w.carried()
		time.Sleep(time.Hour)
		// Each byte is a frame, and a packet of its own: at most 64 bytes of SSH (its header, that of the
		// channel, padding, MAC) and 52 of TCP and IP, which the other side acknowledges with 52.
		rate := (w.carried() - before) * (64 + 52 + 52) / int(time.Hour/time.Second)
		if rate > 512 || rate == 0 {
			t.Errorf("an idle lifeline sends %d bytes a second", rate)
		}
	})
}

func (w *world) carried() (all int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.cables {
		n := c.Carried()
		all += n[0] + n[1]
	}
	return all
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{Pipes: -1}, {Pipes: 17}, {Flows: -1}, {Datagrams: -1}, {MaxCredit: -1}, {Memory: 1 << 10}, {Resume: -1}} {
		if _, err := Client(c, nil); err == nil {
			t.Errorf("%+v is accepted", c)
		}
	}
}
