package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/nettest"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestConn tests what gRPC and net/http expect of a net.Conn.
func TestConn(t *testing.T) {
	b := newLab(t)
	l := b.link(t)
	start(t, l)
	nettest.TestConn(t, func() (near, far net.Conn, stop func(), err error) {
		if near, err = l.Dial(context.Background(), "unix", "/pipe"); err != nil {
			return nil, nil, nil, err
		}
		far = <-b.pipes
		return near, far, func() { near.Close(); far.Close() }, nil
	})
}

func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		l := b.link(t)
		start(t, l)
		c, err := l.Dial(t.Context(), "unix", "/echo")
		testutil.Must(t, err)
		defer c.Close()
		c.SetReadDeadline(time.Now().Add(time.Second))
		began := time.Now()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		// Data that arrives after a read timed out is not lost.
		io.WriteString(c, "kept")
		synctest.Wait()
		c.SetReadDeadline(time.Time{})
		got := make([]byte, 4)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "kept" {
			t.Errorf("got %q, %v", got, err)
		}

		sink, err := l.Dial(t.Context(), "unix", "/sink")
		testutil.Must(t, err)
		sink.SetWriteDeadline(time.Now().Add(time.Minute))
		began = time.Now()
		n, err := sink.Write(make([]byte, 16<<20)) // more than a window
		if !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != time.Minute || n == 0 || n >= 16<<20 {
			t.Errorf("after %s: %d, %v", time.Since(began), n, err)
		}
		sink.SetWriteDeadline(time.Now().Add(time.Second))
		if n, err := sink.Write([]byte("x")); !errors.Is(err, os.ErrDeadlineExceeded) || n != 0 {
			t.Errorf("a write behind one that hangs: %d, %v", n, err)
		}
		if !l.State().Up {
			t.Error("a sink took the link down")
		}
		brief, err := l.Dial(t.Context(), "unix", "/brief")
		testutil.Must(t, err)
		if _, err := brief.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a read of what the other side closed: %v", err)
		}
		if _, err := brief.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("a write to what the other side closed: %v", err)
		}
		brief.Close()
		// Close ends a write that hangs.
		other, err := l.Dial(t.Context(), "unix", "/sink")
		testutil.Must(t, err)
		time.AfterFunc(time.Second, func() { other.Close() })
		if _, err := other.Write(make([]byte, 16<<20)); !errors.Is(err, net.ErrClosed) {
			t.Errorf("a write that Close ended: %v", err)
		}
		sink.Close()
	})
}

// TestHalfOpenWrites: a TCP connection whose remote end accepts no more data, so that writes
// block, with the deadlines of a real socket.
func TestHalfOpenWrites(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	defer ln.Close()
	b := newLab(t)
	stop := make(chan struct{})
	near := make(chan net.Conn, 5)
	// A relay in between stops reading, so that the kernel's buffers fill.
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := b.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			return nil, err
		}
		far, err := ln.Accept()
		if err != nil {
			return nil, err
		}
		t.Cleanup(func() { far.Close() })
		near <- c
		go io.Copy(far, conn)
		go func() {
			buf := make([]byte, 4096)
			for {
				n, err := far.Read(buf)
				if err != nil || closedNow(stop) {
					return
				}
				conn.Write(buf[:n])
			}
		}()
		return c, nil
	}
	l, err := New(Config{Target: b.target, Dial: dial})
	testutil.Must(t, err)
	l.limits.write, l.limits.silence = 300*time.Millisecond, time.Hour // only the write can detect it
	start(t, l)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var conns []net.Conn
	for range 8 { // enough windows to fill the buffers
		c, err := l.Dial(ctx, "unix", "/sink")
		testutil.Must(t, err)
		defer c.Close()
		conns = append(conns, c)
	}
	(<-near).(*net.TCPConn).SetWriteBuffer(1)
	close(stop)
	b.down.Store(true)
	var writers sync.WaitGroup
	for _, c := range conns {
		writers.Go(func() {
			for {
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					if !errors.Is(err, host.ErrUnreachable) {
						t.Errorf("a write that hung gave %v", err)
					}
					return
				}
			}
		})
	}
	writers.Wait()
	until(t, l, false)
}

func TestHook(t *testing.T) {
	b := newLab(t)
	var mu sync.Mutex
	var seen []string
	kept := make(chan struct{})
	fault := errors.New("a fault")
	faults := map[string]bool{} // label: before the call, or after it
	l, err := New(Config{Target: b.target, Dial: b.dial, Hook: func(ctx context.Context, label string, call func(context.Context) error) error {
		mu.Lock()
		if !slices.Contains(seen, label) {
			seen = append(seen, label)
			if label == "ssh/Keepalive" {
				close(kept)
			}
		}
		after, faulty := faults[label]
		mu.Unlock()
		if faulty && !after {
			return fault
		}
		err := call(ctx)
		if faulty && err == nil {
			return fault
		}
		return err
	}})
	testutil.Must(t, err)
	l.limits.interval = time.Millisecond
	start(t, l)
	calls := map[string]func() (io.Closer, error){
		"ssh/Start":     func() (io.Closer, error) { return l.Start(t.Context(), "true") },
		"ssh/Subsystem": func() (io.Closer, error) { return l.Subsystem(t.Context(), "sftp") },
		"ssh/Dial":      func() (io.Closer, error) { return l.Dial(t.Context(), "unix", "/echo") },
		"ssh/Listen":    func() (io.Closer, error) { return l.Listen(t.Context(), "tcp", "127.0.0.1:0") },
	}
	for label, call := range calls {
		c, err := call()
		if err == nil {
			c.Close()
		} else if label != "ssh/Subsystem" {
			t.Errorf("%s: %v", label, err)
		}
		for _, after := range []bool{false, true} {
			mu.Lock()
			faults[label] = after
			mu.Unlock()
			if _, err := call(); label != "ssh/Subsystem" && err != fault {
				t.Errorf("%s with a fault gave %v", label, err)
			}
		}
	}
	// If the hook fails after the call, the result of the call is closed.
	close(b.release)
	if _, err := l.Dial(t.Context(), "unix", "/slow"); err != fault {
		t.Errorf("a dial with a fault gave %v", err)
	}
	if n, err := (<-b.opened).Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("its channel gave %d, %v", n, err)
	}
	testutil.Receive(t, kept, 20*time.Second, "the hook saw no keepalive")
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(seen)
	if got := strings.Join(seen, " "); got != "ssh/Connect ssh/Dial ssh/Keepalive ssh/Listen ssh/Start ssh/Subsystem" {
		t.Errorf("the hook saw %s", got)
	}
}

// TestReaderBytes compares the output of a reader, in pieces of any size, with its input.
func TestReaderBytes(t *testing.T) {
	want := make([]byte, 300<<10)
	for i := range want {
		want[i] = byte(i * 31)
	}
	src := bytes.NewReader(want)
	r := newReader(src, make(chan struct{}), func(err error) error { return err })
	var got []byte
	for i := 1; ; i++ {
		p := make([]byte, i*37%4099+1)
		n, err := r.Read(p)
		got = append(got, p[:n]...)
		if err == io.EOF {
			break
		}
		testutil.Must(t, err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%d bytes came out of %d", len(got), len(want))
	}
}

// TestSocket: a reader that sees the end of a stream must find the socket broken already. In any
// other test that is a matter of timing.
func TestSocket(t *testing.T) {
	for name, use := range map[string]func(*socket) error{
		"read":  func(s *socket) error { _, err := s.Read(make([]byte, 1)); return err },
		"write": func(s *socket) error { _, err := s.Write([]byte("x")); return err },
	} {
		near, far := newWire()
		s := newSocket(near, time.Second)
		far.Write([]byte("x"))
		if err := use(s); err != nil || s.broken.Load() {
			t.Errorf("%s: %v, and broken is %v", name, err, s.broken.Load())
		}
		far.cut()
		s.Read(make([]byte, 1)) // data from before the cut
		s.broken.Store(false)
		if err := use(s); err == nil || !s.broken.Load() {
			t.Errorf("%s after the cut: %v, and broken is %v", name, err, s.broken.Load())
		}
	}
}
