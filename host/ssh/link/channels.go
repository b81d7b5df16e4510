package link

import (
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host/budget"
)

// Bounds of the channels of one connection. x/crypto/ssh keeps up to 2 MiB of each that
// the machine has sent and that was not read, until both sides have closed it. So all
// that has no reader of its own is read here and dropped: the standard error of what is
// no program, and what comes after we have closed a channel. See unread for the others.
const (
	maxOpened    = 512 // by us
	maxForwarded = 192 // by the machine, which forwards connections
	// overdue is how long a machine may take to close a channel that we have closed;
	// one whose link is that late is judged dead by then.
	overdue = 30 * time.Second
	// maxLate is what may come on a channel that we have closed, in bytes: the window
	// that it had, and that which we opened a moment before.
	maxLate = 4 << 20
)

// channels counts those of a connection, each until the machine has closed it.
type channels struct {
	mu                sync.Mutex
	opened, forwarded int
}

// take counts one more, or returns false where there are most already.
func (c *channels) take(count *int, most int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if *count >= most {
		return false
	}
	*count++
	return true
}

func (c *channels) give(count *int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	*count--
}

// channel is one that is counted.
type channel struct {
	ssh.Channel
	c    *connection
	once sync.Once
	over chan struct{} // closed when the machine has closed it

	stdout, stderr *stream
	// refused is why the stream was closed that was not read; set before Close.
	refused atomic.Pointer[budget.ExceededError]
}

// track counts a channel until its requests end, which they do when the machine has
// closed it. serve reads them.
func (c *connection) track(raw ssh.Channel, count *int, serve func()) *channel {
	ch := &channel{Channel: raw, c: c, over: make(chan struct{})}
	var u *unread
	if c.top != nil {
		u = &c.top.unread
	}
	ch.stdout, ch.stderr = u.stream(raw, ch.refuse), u.stream(raw.Stderr(), ch.refuse)
	go func() {
		defer c.budget.Recover("the requests of a channel")
		defer close(ch.over)
		defer ch.stdout.forget()
		defer ch.stderr.forget()
		defer c.channels.give(count)
		serve()
	}()
	return ch
}

func (ch *channel) Read(p []byte) (int, error) {
	n, err := ch.stdout.Read(p)
	if much := ch.refused.Load(); much != nil {
		return 0, much
	}
	return n, err
}

// Stderr is of a program.
func (ch *channel) Stderr() io.ReadWriter {
	return struct {
		io.Reader
		io.Writer
	}{ch.stderr, ch.Channel.Stderr()}
}

// refuse closes a channel of which too much is unread.
func (ch *channel) refuse() {
	ch.refused.Store(&budget.ExceededError{Kind: budget.Memory, Limit: maxUnread, What: "what came on a channel and was not read"})
	ch.Close()
}

// Close has what still comes read and dropped. It does not wait for that, nor does what is
// read wait for it: the closing may hang as long as the machine takes nothing.
func (ch *channel) Close() error {
	ch.once.Do(func() {
		ch.c.budget.Go("a channel that was closed", ch.await)
		var late atomic.Int64
		for _, s := range []*stream{ch.stdout, ch.stderr} {
			ch.c.budget.Go("a channel that was closed", func() {
				if ch.c.discard(s, &late, maxLate) {
					return
				}
				_ = ch.c.budget.Exceed(budget.OutputBytes, "what came on a channel after it was closed")
				ch.c.closeHops()
			})
		}
	})
	return ch.Channel.Close()
}

// discard reads to the end, and returns false where there is more than limit.
func (c *connection) discard(from io.Reader, read *atomic.Int64, limit int64) bool {
	buf := make([]byte, 4<<10)
	for {
		n, err := from.Read(buf)
		if read.Add(int64(n)) > limit {
			return false
		}
		if err != nil {
			return true
		}
	}
}

// silence ends the connection where a channel that is no program's has a standard error:
// no SSH server sends any, and it would not be read.
func (c *connection) silence(stderr io.Reader) {
	if !c.discard(stderr, new(atomic.Int64), 0) {
		_ = c.budget.Exceed(budget.OutputBytes, "the standard error of a connection, which has none")
		c.closeHops()
	}
}

// await counts a channel that we have closed, and the machine has not in time, against
// the host's budget. What exceeds that ends the connection.
func (ch *channel) await() {
	timer := time.NewTimer(overdue)
	defer timer.Stop()
	select {
	case <-ch.over:
		return
	case <-ch.c.ended:
		return
	case <-timer.C:
	}
	release, err := ch.c.budget.Take(budget.Channels, 1, "channels that the host does not close")
	defer release()
	if err != nil {
		ch.c.closeHops()
	}
	select {
	case <-ch.over:
	case <-ch.c.ended:
	}
}

// open opens a channel. serve reads its requests; nil drops them.
func (c *connection) open(kind string, extra []byte, serve func(<-chan *ssh.Request)) (*channel, error) {
	if !c.channels.take(&c.channels.opened, maxOpened) {
		much := &budget.ExceededError{Kind: budget.Channels, Limit: maxOpened, What: "the channels of one connection"}
		return nil, &answerError{text: much.Error(), channel: much}
	}
	raw, requests, err := c.client.OpenChannel(kind, extra)
	if err != nil {
		c.channels.give(&c.channels.opened)
		return nil, err
	}
	if serve == nil {
		serve = ssh.DiscardRequests
	}
	return c.track(raw, &c.channels.opened, func() { serve(requests) }), nil
}

// dial opens a connection from the machine to an address that checkAddress has passed.
func (c *connection) dial(network, address string) (*channelConn, error) {
	if network == "unix" {
		ch, err := c.open("direct-streamlocal@openssh.com", ssh.Marshal(struct {
			Path, Reserved string
			Number         uint32
		}{Path: address}), nil)
		if err != nil {
			return nil, err
		}
		return c.channelConn(ch, &net.UnixAddr{Name: "@", Net: "unix"}, &net.UnixAddr{Name: address, Net: "unix"}), nil
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q: %w", text, err)
	}
	ch, err := c.open("direct-tcpip", ssh.Marshal(struct {
		Host       string
		Port       uint32
		Origin     string
		OriginPort uint32
	}{host, uint32(port), net.IPv4zero.String(), 0}), nil)
	if err != nil {
		return nil, err
	}
	return c.channelConn(ch, tcpAddr("", 0), tcpAddr(host, uint32(port))), nil
}
