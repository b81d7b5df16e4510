package link

import (
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestBulkIsOne: calls for one bulk connection do not use the next one, and its listeners end
// with it; the control connection is not affected.
func TestBulkIsOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		l := b.link(t)
		start(t, l)
		l.EndBulk() // there is none yet
		first, err := l.Bulk(t.Context())
		testutil.Must(t, err)
		p, err := first.Start(t.Context(), "cat")
		testutil.Must(t, err)
		ln, err := first.Listen(t.Context(), "tcp", "127.0.0.1:0")
		testutil.Must(t, err)
		for _, a := range [][2]string{{"udp", "127.0.0.1:1"}, {"tcp", "nowhere"}} {
			if _, err := first.Listen(t.Context(), a[0], a[1]); err == nil || errors.Is(err, host.ErrUnreachable) {
				t.Errorf("%v: %v", a, err)
			}
		}
		time.Sleep(time.Minute)
		l.EndBulk()
		if _, err := ln.Accept(); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("Accept after the end of its connection: %v", err)
		}
		if _, err := p.Wait(); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("a program after the end of its connection: %v", err)
		}
		second, err := l.Bulk(t.Context())
		testutil.Must(t, err)
		if _, err := first.Start(t.Context(), "cat"); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("a program on a connection that is over: %v", err)
		}
		if _, err := first.Listen(t.Context(), "tcp", "127.0.0.1:0"); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("a listener on a connection that is over: %v", err)
		}
		again, err := second.Listen(t.Context(), "tcp", "127.0.0.1:0")
		testutil.Must(t, err)
		if err := again.Close(); err != nil && err != net.ErrClosed {
			t.Error(err)
		}
		if n := len(b.attempts()); n != 3 || !l.State().Up || l.State().Connection != 1 {
			t.Errorf("%d connections, the control one is number %d", n, l.State().Connection)
		}
	})
}
