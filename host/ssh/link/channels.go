package link

import (
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host/budget"
)

// Bounds of the channels of one connection. x/crypto/ssh keeps up to 2 MiB of each that
// the machine has sent and nobody has read, until both sides have closed it.
const (
	maxOpened    = 512 // by us
	maxForwarded = 192 // by the machine, which forwards connections
	// overdue is how long a machine may take to close a channel that we have closed;
	// one whose link is that late is judged dead by then.
	overdue = 30 * time.Second
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
}

// track counts a channel until its requests end, which they do when the machine has
// closed it. serve reads them.
func (c *connection) track(raw ssh.Channel, count *int, serve func()) *channel {
	ch := &channel{Channel: raw, c: c, over: make(chan struct{})}
	go func() {
		defer c.budget.Recover("the requests of a channel")
		defer close(ch.over)
		defer c.channels.give(count)
		serve()
	}()
	return ch
}

func (ch *channel) Close() error {
	ch.once.Do(func() { ch.c.budget.Go("a channel that was closed", ch.await) })
	return ch.Channel.Close()
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
		return &channelConn{ch, &net.UnixAddr{Name: "@", Net: "unix"}, &net.UnixAddr{Name: address, Net: "unix"}}, nil
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
	return &channelConn{ch, tcpAddr("", 0), tcpAddr(host, uint32(port))}, nil
}
