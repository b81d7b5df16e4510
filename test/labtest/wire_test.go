package labtest

import (
	"bytes"
	"io"
	"math/bits"
	"net"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// wired returns a wire to an echo server, and a connection over it.
func wired(t *testing.T) (*Wire, net.Conn) {
	t.Helper()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	t.Cleanup(func() { server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(c, c)
				c.Close()
			}()
		}
	}()
	w, err := NewWire(server.Addr().String())
	testutil.Must(t, err)
	t.Cleanup(w.Close)
	return w, dialWire(t, w)
}

func dialWire(t *testing.T, w *Wire) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", w.Address())
	testutil.Must(t, err)
	t.Cleanup(func() { c.Close() })
	testutil.Must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	return c
}

// echo sends data over the connection and returns the reply and how long it took.
func echo(t *testing.T, c net.Conn, data []byte) ([]byte, time.Duration) {
	t.Helper()
	began := time.Now()
	sent := make(chan error, 1)
	go func() { _, err := c.Write(data); sent <- err }()
	got := make([]byte, len(data))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	testutil.Must(t, <-sent)
	return got, time.Since(began)
}

// closed checks that the connection ends without another byte.
func closed(t *testing.T, c net.Conn) {
	t.Helper()
	n, err := c.Read(make([]byte, 1))
	if timeout, ok := err.(net.Error); n != 0 || err == nil || ok && timeout.Timeout() {
		t.Errorf("the connection continues: %d bytes, %v", n, err)
	}
}

func TestWire(t *testing.T) {
	data := bytes.Repeat([]byte("knots "), 50000)
	t.Run("carries and counts", func(t *testing.T) {
		w, c := wired(t)
		if got, _ := echo(t, c, data); !bytes.Equal(got, data) {
			t.Error("other bytes come back")
		}
		if forth, back := w.Carried(); forth != int64(len(data)) || back != int64(len(data)) {
			t.Errorf("carried %d and %d bytes, want %d each", forth, back, len(data))
		}
	})
	t.Run("delays", func(t *testing.T) {
		w, c := wired(t)
		w.Delay(50 * time.Millisecond)
		if got, took := echo(t, c, data); !bytes.Equal(got, data) || took < 100*time.Millisecond {
			t.Errorf("it took %s", took)
		}
	})
	t.Run("throttles", func(t *testing.T) {
		w, c := wired(t)
		w.Throttle(100_000)
		if got, took := echo(t, c, data[:30_000]); !bytes.Equal(got, data[:30_000]) || took < 290*time.Millisecond {
			t.Errorf("it took %s", took)
		}
	})
	t.Run("cuts", func(t *testing.T) {
		w, c := wired(t)
		echo(t, c, data)
		w.Cut()
		closed(t, c)
		closed(t, dialWire(t, w))
		w.Restore()
		echo(t, dialWire(t, w), data)
	})
	t.Run("swallows", func(t *testing.T) {
		w, c := wired(t)
		echo(t, c, data)
		w.Swallow()
		if _, err := c.Write(data); err != nil {
			t.Fatal(err)
		}
		w.Restore()
		closed(t, c)
		if forth, _ := w.Carried(); forth >= 2*int64(len(data)) {
			t.Error("what was swallowed was carried")
		}
	})
	t.Run("corrupts", func(t *testing.T) {
		w, c := wired(t)
		w.Corrupt()
		got, _ := echo(t, c, data[:1000])
		turned := 0
		for i := range got {
			turned += bits.OnesCount8(got[i] ^ data[i])
		}
		if turned == 0 {
			// Both directions may flip the same bit of the same byte: once in 8000 times.
			if got, _ := echo(t, c, data[:1000]); bytes.Equal(got, data[:1000]) {
				t.Error("the same bytes come back")
			}
		}
		w.Restore()
		if got, _ := echo(t, c, data); !bytes.Equal(got, data) {
			t.Error("restored, other bytes come back")
		}
	})
	t.Run("fails in the middle", func(t *testing.T) {
		w, c := wired(t)
		struck := make(chan struct{})
		w.After(1234, func() { w.Cut(); close(struck) })
		_, _ = c.Write(data)
		<-struck
		w.Close()
		if forth, _ := w.Carried(); forth != 1234 {
			t.Errorf("%d bytes came through, want 1234", forth)
		}
	})
}
