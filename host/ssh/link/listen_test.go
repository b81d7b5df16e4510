package link

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestUnattendedListener: connections that are not accepted block neither the link nor its end.
func TestUnattendedListener(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		l := b.link(t)
		start(t, l)
		ln, err := l.Listen(t.Context(), "tcp", "127.0.0.1:0")
		testutil.Must(t, err)
		if got := ln.Addr().String(); got != "127.0.0.1:7777" { // which the host chose
			t.Errorf("it listens on %s", got)
		}
		far := <-b.conns
		come := func(addr string, port uint32) (ssh.Channel, error) {
			c, requests, err := far.OpenChannel("forwarded-tcpip", ssh.Marshal(struct {
				Addr       string
				Port       uint32
				OriginAddr string
				OriginPort uint32
			}{addr, port, "192.0.2.9", 4444}))
			if err == nil {
				go ssh.DiscardRequests(requests)
			}
			return c, err
		}
		for _, other := range []uint32{7778, 0} {
			if _, err := come("127.0.0.1", other); err == nil {
				t.Errorf("a connection to port %d was taken", other)
			}
		}
		if _, _, err := far.OpenChannel("forwarded-tcpip", []byte("junk")); err == nil {
			t.Error("junk was taken")
		}
		var channels []ssh.Channel
		for range backlog + 50 {
			c, err := come("127.0.0.1", 7777)
			testutil.Must(t, err)
			channels = append(channels, c)
		}
		for i, c := range channels[backlog:] {
			if n, err := c.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("connection %d above the backlog read %d, %v", i, n, err)
			}
		}
		c, err := ln.Accept()
		testutil.Must(t, err)
		if c.LocalAddr().String() != "127.0.0.1:7777" || c.RemoteAddr().String() != "192.0.2.9:4444" {
			t.Errorf("a connection is from %s to %s", c.RemoteAddr(), c.LocalAddr())
		}
		go io.Copy(channels[0], channels[0])
		says(t, c, "hello")
		c.Close()
		time.Sleep(time.Minute)
		if n := len(b.attempts()); n != 1 || !l.State().Up {
			t.Errorf("the link did not last: %d connections", n)
		}

		b.wire(0).cut()
		until(t, l, false)
		for err = nil; err == nil; { // connections that arrived before are returned first
			_, err = ln.Accept()
		}
		if !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("Accept after the link: %v", err)
		}
		if err := ln.Close(); err != nil {
			t.Error(err)
		}
		if _, err := ln.Accept(); err != net.ErrClosed {
			t.Errorf("Accept after Close: %v", err)
		}
		if err := ln.Close(); err != net.ErrClosed {
			t.Errorf("a second Close: %v", err)
		}
	})
}
