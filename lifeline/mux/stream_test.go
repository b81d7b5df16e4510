package mux

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

var broken = wire.Error{Refusal: wire.Broken}

func TestConn(t *testing.T) {
	w := newWorld(t, Config{})
	exit, helper, _ := w.connect(t)
	n := 0
	nettest.TestConn(t, func() (c1, c2 net.Conn, stop func(), err error) {
		n++
		c1, c2 = open(t, helper, exit, n)
		return c1, c2, func() { c1.Close(); c2.Close() }, nil
	})
	testutil.Eventually(t, "all streams end", func() bool { return exit.Stats().Flows+helper.Stats().Flows == 0 })
}

// pair runs f in a bubble, with a stream that one of the ends opened, and checks that nothing is left of it.
func pair(t *testing.T, f func(t *testing.T, a, b wire.Stream)) {
	for _, name := range []string{"exit", "helper"} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Config{})
				exit, helper, stop := w.connect(t)
				if name == "exit" {
					exit, helper = helper, exit
				}
				a, b := open(t, helper, exit, 1)
				f(t, a, b)
				a.Close()
				b.Close()
				synctest.Wait()
				for _, s := range []*Session{exit, helper} {
					if got := s.Stats(); got.Flows != 0 {
						t.Errorf("%d streams are left", got.Flows)
					}
				}
				stop()
				synctest.Wait()
				if w.charged.Load() != 0 {
					t.Errorf("%d bytes stay charged", w.charged.Load())
				}
			})
		})
	}
}

func send(t *testing.T, s wire.Stream, text string) {
	t.Helper()
	if n, err := io.WriteString(s, text); n != len(text) || err != nil {
		t.Errorf("wrote %d of %q: %v", n, text, err)
	}
}

// rest expects the text, and then an error of Read.
func rest(t *testing.T, s wire.Stream, text string, want error) {
	t.Helper()
	got, err := io.ReadAll(s)
	if err == nil {
		err = io.EOF
	}
	if string(got) != text || err != want {
		t.Errorf("read %q and %v, want %q and %v", got, err, text, want)
	}
}

func TestHalfClose(t *testing.T) {
	pair(t, func(t *testing.T, a, b wire.Stream) {
		send(t, a, "question")
		testutil.Must(t, a.CloseWrite())
		rest(t, b, "question", io.EOF)
		if _, err := a.Write([]byte("x")); err != net.ErrClosed {
			t.Errorf("Write after CloseWrite: %v", err)
		}
		send(t, b, "answer")
		testutil.Must(t, b.CloseWrite())
		rest(t, a, "answer", io.EOF)
	})
}

// TestClose: the other end gets all that was written, and cannot write more than is on its way.
func TestClose(t *testing.T) {
	pair(t, func(t *testing.T, a, b wire.Stream) {
		send(t, a, "last words")
		send(t, b, "unread")
		testutil.Must(t, a.Close())
		synctest.Wait()
		if _, err := b.Write(make([]byte, 10)); err != broken {
			t.Errorf("Write after the other end's Close: %v", err)
		}
		rest(t, b, "last words", io.EOF)
		rest(t, a, "", net.ErrClosed)
	})
}

// TestCloseEndsWriter: a Write that waits for credit fails when the reader closes.
func TestCloseEndsWriter(t *testing.T) {
	pair(t, func(t *testing.T, a, b wire.Stream) {
		wrote := make(chan error, 1)
		go func() {
			n, err := b.Write(make([]byte, 10<<20))
			if n > initialCredit {
				err = fmt.Errorf("wrote %d bytes that no one read: %w", n, err)
			}
			wrote <- err
		}()
		synctest.Wait()
		a.Close()
		if err := <-wrote; err != broken {
			t.Error(err)
		}
	})
}

func TestReset(t *testing.T) {
	pair(t, func(t *testing.T, a, b wire.Stream) {
		send(t, a, "lost")
		synctest.Wait()
		a.Reset(wire.Unreachable)
		a.Reset(wire.Refused)
		synctest.Wait()
		rest(t, b, "", wire.Error{Refusal: wire.Unreachable})
		if _, err := b.Write([]byte("x")); err != (wire.Error{Refusal: wire.Unreachable}) {
			t.Errorf("Write after the other end's Reset: %v", err)
		}
		rest(t, a, "", net.ErrClosed)
		if _, err := a.Write([]byte("x")); err != net.ErrClosed {
			t.Errorf("Write after Reset: %v", err)
		}
	})
}

// TestResetAfterClose: a user that gives up the delivery ends it.
func TestResetAfterClose(t *testing.T) {
	pair(t, func(t *testing.T, a, b wire.Stream) {
		go b.Write(make([]byte, 1<<20))
		synctest.Wait()
		testutil.Must(t, a.CloseWrite())
		a.Close()
		a.Reset(wire.Broken)
		synctest.Wait()
		if _, err := b.Write([]byte("x")); err != broken {
			t.Errorf("Write of the other end: %v", err)
		}
	})
}

// TestResetOfNews: a stream that ends before the other end has heard of it leaves nothing there.
func TestResetOfNews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		exit, helper, _ := w.connect(t)
		st, err := helper.Open(t.Context(), flow(1))
		testutil.Must(t, err)
		st.Reset(wire.Broken)
		open(t, helper, exit, 2)
		if a, b := exit.Stats().Flows, helper.Stats().Flows; a != 1 || b != 1 {
			t.Errorf("there are %d and %d streams", a, b)
		}
	})
}

// TestFirstBytes: what is written at once arrives although nothing has come back.
func TestFirstBytes(t *testing.T) {
	pair(t, func(t *testing.T, a, b wire.Stream) {
		all := bytes.Repeat([]byte("0123456789"), 20_000)
		send(t, a, string(all))
		testutil.Must(t, a.CloseWrite())
		rest(t, b, string(all), io.EOF)
	})
}

// TestAddresses: each end sees the connection as the pod does.
func TestAddresses(t *testing.T) {
	pair(t, func(t *testing.T, a, b wire.Stream) {
		f := a.Flow()
		for _, c := range []struct{ got, want net.Addr }{
			{a.LocalAddr(), net.TCPAddrFromAddrPort(f.Src)}, {a.RemoteAddr(), net.TCPAddrFromAddrPort(f.Dst)},
			{b.LocalAddr(), net.TCPAddrFromAddrPort(f.Dst)}, {b.RemoteAddr(), net.TCPAddrFromAddrPort(f.Src)},
		} {
			if c.got.String() != c.want.String() {
				t.Errorf("the address is %s, want %s", c.got, c.want)
			}
		}
	})
}

// TestSlowReader: a reader that stops holds up its own stream only, although all are in one pipe.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Pipes: 1})
		exit, helper, _ := w.connect(t)
		stalled, _ := open(t, helper, exit, 1)
		stalled.SetWriteDeadline(time.Now().Add(time.Minute))
		if n, err := stalled.Write(make([]byte, 8<<20)); err == nil || n != initialCredit {
			t.Errorf("wrote %d bytes to a reader that stopped: %v", n, err)
		}
		a, b := open(t, helper, exit, 2)
		go func() {
			a.Write(make([]byte, 8<<20))
			a.CloseWrite()
		}()
		if n, err := io.Copy(io.Discard, b); n != 8<<20 || err != nil {
			t.Errorf("read %d bytes: %v", n, err)
		}
	})
}

// TestCreditGrows: a reader that keeps up lets the other end send further ahead.
func TestCreditGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{})
		exit, helper, _ := w.connect(t)
		a, b := open(t, helper, exit, 1)
		const moved = 4 << 20
		go a.Write(make([]byte, moved+8<<20))
		_, err := io.CopyN(io.Discard, b, moved)
		testutil.Must(t, err)
		synctest.Wait()
		if got := b.(*Stream).in.Len(); got < DefaultMaxCredit*3/4 || got > DefaultMaxCredit {
			t.Errorf("the other end is %d bytes ahead", got)
		}
	})
}

// TestFlows: an end opens no more streams than it may, and refuses more than it may have.
func TestFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		exhausted := wire.Error{Refusal: wire.Exhausted}
		w := newWorld(t, Config{})
		w.cfg.Flows = 100 // of the exit
		exit, helper, _ := w.connect(t)
		var streams []wire.Stream
		for i := range DefaultFlows {
			st, err := helper.Open(t.Context(), flow(i))
			testutil.Must(t, err)
			streams = append(streams, st)
		}
		if _, err := helper.Open(t.Context(), flow(0)); err != exhausted {
			t.Errorf("one stream too many: %v", err)
		}
		synctest.Wait()
		if got := exit.Stats(); got.Flows != 100 || got.Refused != DefaultFlows-100 {
			t.Errorf("the exit has %d streams and refused %d", got.Flows, got.Refused)
		}
		if got := helper.Stats(); got.Flows != 100 || got.Refused != 1 {
			t.Errorf("the helper has %d streams and refused %d", got.Flows, got.Refused)
		}
		refused := 0
		for _, st := range streams {
			if _, err := st.Write([]byte("x")); err == exhausted {
				refused++
			}
			st.Close()
		}
		if refused != DefaultFlows-100 {
			t.Errorf("%d streams know that they were refused", refused)
		}
		for range 100 {
			st, err := exit.Accept(t.Context())
			testutil.Must(t, err)
			st.Close()
		}
		synctest.Wait()
		if got := exit.Stats(); got.Flows != 0 {
			t.Errorf("the exit still has %d streams", got.Flows)
		}
	})
}

// TestMemory: readers that stop hold no more than their half of the memory. The streams that hold most end, and
// the others are in order.
func TestMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Config{Memory: 4 << 20})
		exit, helper, stop := w.connect(t)
		const large, small = 50, 200
		ends := map[int]wire.Stream{}
		for i := range large + small {
			size := 1000
			if i < large {
				size = 2 << 20
			}
			a, b := open(t, helper, exit, i)
			ends[i] = b
			go a.Write(make([]byte, size))
		}
		synctest.Wait()
		if held := exit.Stats().Held; held > 2<<20 {
			t.Errorf("%d bytes are held", held)
		}
		gone := 0
		for i, st := range ends {
			n, err := st.Read(make([]byte, 1000))
			switch {
			case errors.Is(err, wire.Error{Refusal: wire.Exhausted}) && i < large:
				gone++
			case err != nil || n == 0:
				t.Errorf("stream %d: read %d bytes, %v", i, n, err)
			}
		}
		if gone == 0 || gone == large {
			t.Errorf("%d of %d streams ended", gone, large)
		}
		// Both halves of both ends, and what the pipes had on their way.
		if most := w.most.Load(); most > 8<<20 {
			t.Errorf("%d bytes were held at a time", most)
		}
		stop()
		synctest.Wait()
		if left := w.charged.Load(); left != 0 {
			t.Errorf("%d bytes stay charged", left)
		}
	})
}

func TestOpenFails(t *testing.T) {
	w := newWorld(t, Config{})
	exit, _, stop := w.connect(t)
	if _, err := exit.Open(t.Context(), wire.Flow{}); err == nil {
		t.Error("a flow without addresses is opened")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := exit.Open(ctx, flow(1)); !errors.Is(err, context.Canceled) {
		t.Errorf("after the end of its context, Open returned %v", err)
	}
	stop()
	if _, err := exit.Open(t.Context(), flow(1)); err == nil || err != exit.Err() {
		t.Errorf("after the end of the session, Open returned %v", err)
	}
}
