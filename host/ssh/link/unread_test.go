package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// overTCP is a link to the lab over a real TCP connection, so that a sender that is faster than
// its reader must wait.
func overTCP(t *testing.T, a *budget.Account) (*lab, *Link) {
	t.Helper()
	b := newLab(t)
	close(b.release)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			go b.serve(c)
		}
	}()
	l, err := New(Config{Target: b.target, Budget: a, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", listener.Addr().String())
	}})
	testutil.Must(t, err)
	start(t, l)
	return b, l
}

// paused dials a channel and does not read from it.
func paused(t *testing.T, b *lab, l *Link) (net.Conn, ssh.Channel) {
	t.Helper()
	c, err := l.Dial(t.Context(), "unix", "/slow")
	testutil.Must(t, err)
	far := <-b.opened
	if _, err := far.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return c, far
}

// crumbs writes n packets of one byte, until a write fails.
func crumbs(to io.Writer, n int) {
	for range n {
		if _, err := to.Write([]byte{'x'}); err != nil {
			return
		}
	}
}

// TestUnreadPacketsAreBounded: unread channels that receive packets of one byte cost what their
// bytes on the wire allow, and not 100 MiB each.
func TestUnreadPacketsAreBounded(t *testing.T) {
	account := budget.New(budget.Limits{})
	b, l := overTCP(t, account)
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	highest := uint64(0)
	const each = 300_000
	var first net.Conn
	for range 2 {
		c, far := paused(t, b, l)
		if first == nil {
			first = c
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			crumbs(far, each)
		}()
		for wait := true; wait; {
			select {
			case <-done:
				wait = false
			case <-time.After(10 * time.Millisecond):
			}
			runtime.ReadMemStats(&now)
			highest = max(highest, now.HeapAlloc)
		}
	}
	cost := int64(highest) - int64(before.HeapAlloc)
	t.Logf("peak %d KiB", cost>>10)
	if most := int64(24 << 20); cost > most {
		t.Errorf("it cost %d bytes, want at most %d", cost, most)
	}
	first.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := io.Copy(io.Discard, first)
	var much *budget.ExceededError
	if !errors.As(err, &much) || much.Kind != budget.Memory {
		t.Errorf("the first channel ends with %v", err)
	}
	if account.Err() != nil || !l.State().Up {
		t.Errorf("the host is blamed for what our side does not read: %v", account.Err())
	}
}

// TestReadPacketsAreNotCounted: data that is read costs nothing, however small its packets are,
// and neither does a paused stream within its window.
func TestReadPacketsAreNotCounted(t *testing.T) {
	account := budget.New(budget.Limits{})
	b, l := overTCP(t, account)
	slow, remoteSlow := paused(t, b, l)
	go remoteSlow.Write(bytes.Repeat([]byte("y"), 3<<20)) // more than the window
	quick, far := paused(t, b, l)
	go func() {
		crumbs(far, 100_000)
		far.Write(bytes.Repeat([]byte("x"), 50<<20))
		far.CloseWrite()
	}()
	if n, err := io.Copy(io.Discard, quick); err != nil || n != 50<<20+100_000 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n, err := io.CopyN(io.Discard, slow, 3<<20); err != nil {
		t.Errorf("the paused stream: %d bytes, %v", n, err)
	}
	if account.Err() != nil {
		t.Error(account.Err())
	}
}

// TestStandardErrorOfAConnection: no sshd sends one, and nothing read it.
func TestStandardErrorOfAConnection(t *testing.T) {
	account := budget.New(budget.Limits{})
	b, l := overTCP(t, account)
	_, far := paused(t, b, l)
	go crumbs(far.Stderr(), 1000)
	testutil.Receive(t, account.Exceeded(), 10*time.Second, "nothing was exceeded")
	var much *budget.ExceededError
	if !errors.As(account.Err(), &much) || much.Kind != budget.OutputBytes {
		t.Error(account.Err())
	}
}

// talkative is a channel whose other side continues after it was closed.
type talkative struct {
	mute
	left chan int
}

func (c talkative) Read(p []byte) (int, error) {
	n, ok := <-c.left
	if !ok {
		return 0, io.EOF
	}
	return min(n, len(p)), nil
}

// TestClosedChannelThatGoesOn: data that was on its way is read and dropped; more than the
// window ends the connection.
func TestClosedChannelThatGoesOn(t *testing.T) {
	for what, packets := range map[string]int{"the rest of the window": 2 << 20 >> 12, "more than the window": 5 << 20 >> 12} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				account := budget.New(budget.Limits{})
				_, far := newWire()
				c := &connection{budget: account, ended: make(chan struct{}), hops: []*hop{{socket: newSocket(far, time.Minute)}}}
				in, left := make(chan *ssh.Request), make(chan int)
				c.channels.take(&c.channels.opened, maxOpened)
				c.track(talkative{left: left}, &c.channels.opened, func() { ssh.DiscardRequests(in) }).Close()
				exceeded := false
				for range packets {
					select {
					case left <- 4 << 10:
						continue
					case <-account.Exceeded():
						exceeded = true
					case <-time.After(time.Second):
						t.Fatal("what comes is not read")
					}
					break
				}
				synctest.Wait()
				if want := packets > maxLate>>12; exceeded != want || c.hops[0].socket.broken.Load() != want {
					t.Errorf("exceeded: %v, closed: %v, want %v", exceeded, c.hops[0].socket.broken.Load(), want)
				}
				close(left)
				close(in)
				synctest.Wait()
			})
		})
	}
}

// full is a stream that always has more data.
type full struct{}

func (full) Read(p []byte) (int, error) { return len(p), nil }

// TestStreamThatIsAlwaysBehind: a large copy whose reader is slower than the sender is never
// seen empty. The overhead of its packets adds up, but is not unread data.
func TestStreamThatIsAlwaysBehind(t *testing.T) {
	u := &newSocket(nil, time.Minute).unread
	u.over = func() { t.Error("the connection was ended") }
	s := u.stream(full{}, func() { t.Error("the stream was closed") })
	buf := make([]byte, chunk)
	u.receive(1 << 20) // how far it is behind
	for range 20 << 30 / chunk {
		u.receive(chunk + 130) // three packets
		if _, err := s.Read(buf); err != nil {
			t.Fatal(err)
		}
	}
}
