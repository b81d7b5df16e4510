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

// Bounds of the channels of one connection. For each channel x/crypto/ssh keeps up to 2 MiB of
// unread data from the host, until both sides have closed it. So this package reads and drops
// what no one else reads: the standard error of channels without a program, and data that
// arrives after we closed a channel. unread bounds the others.
const (
	maxOpened    = 512 // by us
	maxForwarded = 192 // by the host, for forwarded connections
	// overdue is how long the host may take to close a channel that we have closed. By then a
	// link that late counts as dead.
	overdue = 30 * time.Second
	// maxLate is the number of bytes that may arrive on a channel that we have closed: its
	// window, and one window that we granted just before.
	maxLate = 4 << 20
)

// channels counts the channels of a connection, each until the host has closed it.
type channels struct {
	mu                sync.Mutex
	opened, forwarded int
}

// take counts one more channel, or returns false if the limit is reached.
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

// channel is a channel that is counted.
type channel struct {
	ssh.Channel
	c    *connection
	once sync.Once
	over chan struct{} // closed when the host has closed it

	stdout, stderr *stream
	// refused is the reason why an unread stream was closed; set before Close.
	refused atomic.Pointer[budget.ExceededError]
}

// track counts a channel until its requests end, which they do when the host has closed it.
// serve reads the requests.
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

// Stderr is the standard error of a program.
func (ch *channel) Stderr() io.ReadWriter {
	return struct {
		io.Reader
		io.Writer
	}{ch.stderr, ch.Channel.Stderr()}
}

// refuse closes a channel that has too much unread data.
func (ch *channel) refuse() {
	ch.refused.Store(&budget.ExceededError{Kind: budget.Memory, Limit: maxUnread, What: "what came on a channel and was not read"})
	ch.Close()
}

// Close starts to read and drop what still arrives. It does not wait for that, and the reading
// does not wait for Close: that may hang as long as the host accepts no data.
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

// discard reads to the end, and returns false if there is more than limit.
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

// silence ends the connection if a channel without a program has a standard error: no SSH server
// sends one, and nothing would read it.
func (c *connection) silence(stderr io.Reader) {
	if !c.discard(stderr, new(atomic.Int64), 0) {
		_ = c.budget.Exceed(budget.OutputBytes, "the standard error of a connection, which has none")
		c.closeHops()
	}
}

// await counts a channel that we have closed, and the host has not closed in time, against the
// budget of the host. If that exceeds the budget, it ends the connection.
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

// dial opens a connection from the host to an address that checkAddress has accepted.
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
