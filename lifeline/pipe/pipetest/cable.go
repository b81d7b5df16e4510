// Package pipetest has transports that a test can cut at a byte.
package pipetest

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// ErrCut is the error of a transport that was cut.
var ErrCut = errors.New("the cable is cut")

// Plan says what happens to a cable. The zero Plan carries everything.
type Plan struct {
	// Capacity is how many bytes each direction holds between Write and Read; 0: 64 KiB.
	Capacity int
	// Most is the most bytes that one Read returns; 0: no limit.
	Most int
	// CutAfter is how many bytes each direction carries before both end; 0: no limit. The first is that of the
	// first end that New returns. Cut before the first byte with Cut.
	CutAfter [2]int
	// Swallow: instead of ending, the cable takes all that is written and delivers nothing more.
	Swallow bool
}

// Cable is a connection in memory between two ends. It works in a bubble of testing/synctest.
type Cable struct {
	plan Plan

	mu        sync.Mutex
	changed   *sync.Cond
	to        [2]direction // by the end that writes
	cut       bool
	swallowed bool
}

type direction struct {
	buf    []byte
	passed int
	closed bool // by the end that writes
}

// New makes a cable and returns its ends.
func New(plan Plan) (*Cable, net.Conn, net.Conn) {
	if plan.Capacity == 0 {
		plan.Capacity = 64 << 10
	}
	c := &Cable{plan: plan}
	c.changed = sync.NewCond(&c.mu)
	return c, &end{c, 0}, &end{c, 1}
}

// Cut ends the cable, or makes it swallow if its plan says so. What has been written before can be read after
// a cut.
func (c *Cable) Cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail()
}

func (c *Cable) fail() {
	c.swallowed = c.plan.Swallow
	c.cut = c.cut || !c.plan.Swallow
	c.changed.Broadcast()
}

// Carried is how many bytes each end has written.
func (c *Cable) Carried() [2]int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return [2]int{c.to[0].passed, c.to[1].passed}
}

type end struct {
	*Cable
	side int
}

func (e *end) Write(p []byte) (n int, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d, limit := &e.to[e.side], e.plan.CutAfter[e.side]
	for n < len(p) {
		switch {
		case d.closed:
			return n, net.ErrClosed
		case e.cut, e.to[1-e.side].closed:
			return n, ErrCut
		case e.swallowed:
			return len(p), nil
		}
		more := min(len(p)-n, e.plan.Capacity-len(d.buf))
		if limit > 0 {
			more = min(more, limit-d.passed)
		}
		if more == 0 {
			e.changed.Wait()
			continue
		}
		d.buf = append(d.buf, p[n:n+more]...)
		d.passed += more
		n += more
		if limit > 0 && d.passed >= limit {
			e.fail()
		}
		e.changed.Broadcast()
	}
	return n, nil
}

func (e *end) Read(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := &e.to[1-e.side]
	for {
		switch {
		case e.to[e.side].closed:
			return 0, net.ErrClosed
		case len(d.buf) > 0:
			if e.plan.Most > 0 && len(p) > e.plan.Most {
				p = p[:e.plan.Most]
			}
			n := copy(p, d.buf)
			d.buf = d.buf[n:]
			e.changed.Broadcast()
			return n, nil
		case e.cut, d.closed && !e.swallowed:
			return 0, ErrCut
		}
		e.changed.Wait()
	}
}

// Close ends both directions. The other end can read what was written before, and does not notice if the cable
// swallows.
func (e *end) Close() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.to[e.side].closed = true
	e.changed.Broadcast()
	return nil
}

func (e *end) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "cable", Net: "unix"} }
func (e *end) RemoteAddr() net.Addr             { return e.LocalAddr() }
func (e *end) SetDeadline(time.Time) error      { return os.ErrNoDeadline }
func (e *end) SetReadDeadline(time.Time) error  { return os.ErrNoDeadline }
func (e *end) SetWriteDeadline(time.Time) error { return os.ErrNoDeadline }
