package link

import (
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestForwardedChannelsAreBounded: a client that opens hundreds of connections to a forwarded
// port and keeps them gets no more than the limit; when they are closed, it can open new ones.
func TestForwardedChannelsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		l := b.link(t)
		start(t, l)
		ln, err := l.Listen(t.Context(), "tcp", "127.0.0.1:7777")
		testutil.Must(t, err)
		accepted := make(chan net.Conn, 1000)
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				accepted <- c
			}
		}()
		far := <-b.conns
		come := func() error {
			_, requests, err := far.OpenChannel("forwarded-tcpip", ssh.Marshal(struct {
				Addr       string
				Port       uint32
				OriginAddr string
				OriginPort uint32
			}{"127.0.0.1", 7777, "192.0.2.9", 4444}))
			if err == nil {
				go ssh.DiscardRequests(requests)
			}
			return err
		}
		for i := range maxForwarded {
			if err := come(); err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
			synctest.Wait()
		}
		var refused *ssh.OpenChannelError
		for range 100 {
			if err := come(); !errors.As(err, &refused) || refused.Reason != ssh.ResourceShortage {
				t.Fatalf("one more than the bound: %v", err)
			}
		}
		(<-accepted).Close()
		synctest.Wait()
		if err := come(); err != nil {
			t.Errorf("after one has gone: %v", err)
		}
		if !l.State().Up {
			t.Error("the link went down")
		}
	})
}

// mute is a channel whose other side never closes it.
type mute struct{ ssh.Channel }

func (mute) Close() error             { return nil }
func (mute) Read([]byte) (int, error) { return 0, io.EOF }
func (mute) Stderr() io.ReadWriter    { return mute{} }

// TestChannelsThatTheHostDoesNotClose: each may take 2 MiB of memory of the process.
func TestChannelsThatTheHostDoesNotClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 5
		account := budget.New(budget.Limits{Channels: most})
		_, far := newWire()
		c := &connection{budget: account, ended: make(chan struct{}), hops: []*hop{{socket: newSocket(far, time.Minute)}}}
		var requests []chan *ssh.Request
		open := func() *channel {
			in := make(chan *ssh.Request)
			requests = append(requests, in)
			if !c.channels.take(&c.channels.opened, maxOpened) {
				t.Fatal("there is no room")
			}
			return c.track(mute{}, &c.channels.opened, func() { ssh.DiscardRequests(in) })
		}
		for range most {
			open().Close()
		}
		time.Sleep(10 * overdue)
		if err := account.Err(); err != nil {
			t.Fatalf("within the budget: %v", err)
		}
		close(requests[0]) // the first is closed at last
		synctest.Wait()
		open().Close()
		time.Sleep(10 * overdue)
		if err := account.Err(); err != nil {
			t.Fatalf("one was closed: %v", err)
		}
		open().Close()
		open().Close() // a channel that is closed in time does not count
		close(requests[len(requests)-1])
		time.Sleep(overdue / 2)
		if err := account.Err(); err != nil {
			t.Fatalf("before its time: %v", err)
		}
		time.Sleep(overdue)
		var much *budget.ExceededError
		if !errors.As(account.Err(), &much) || much.Kind != budget.Channels {
			t.Errorf("above the budget: %v", account.Err())
		}
		if !c.hops[0].socket.broken.Load() {
			t.Error("the connection continues")
		}
		for _, in := range requests[1 : len(requests)-1] {
			close(in)
		}
		synctest.Wait()
		if c.channels.opened != 0 {
			t.Errorf("%d channels are counted at the end", c.channels.opened)
		}
	})
}

// TestChannelsThatWeOpenAreBounded: the next one is refused with the name of the budget, and the
// driver continues, because we opened them ourselves.
func TestChannelsThatWeOpenAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		l := b.link(t)
		start(t, l)
		until(t, l, true)
		l.control.conn.channels.opened = maxOpened - 1
		c, err := l.Dial(t.Context(), "unix", "/echo")
		testutil.Must(t, err)
		var much *budget.ExceededError
		if _, err := l.Dial(t.Context(), "unix", "/echo"); !errors.As(err, &much) || much.Kind != budget.Channels {
			t.Errorf("one more than the bound: %v", err)
		}
		if _, err := l.Start(t.Context(), "true"); !errors.As(err, &much) {
			t.Errorf("a session more than the bound: %v", err)
		}
		c.Close()
		synctest.Wait()
		again, err := l.Dial(t.Context(), "unix", "/echo")
		if err != nil {
			t.Fatalf("after one has gone: %v", err)
		}
		says(t, again, "hello")
		if _, err := io.WriteString(again, "x"); err != nil {
			t.Error(err)
		}
		again.Close()
	})
}
