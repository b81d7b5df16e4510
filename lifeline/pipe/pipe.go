// Package pipe has a stream of bytes between two ends that survives the connections which carry it, its
// transports. One end dials them, the other one accepts them. While there is none, writers wait; the next one
// resends what the other end has not received. A pipe ends with an error when it has no transport for too
// long, and when the accepting side no longer knows it.
//
//	New ──▶ open ──Close──▶ closing ──────────┐
//	         │ CLOSE arrives                  │ the other end has received CLOSE
//	         ├──────▶ closed, once it is acknowledged ──▶ ended: Run returns nil
//	         └─ ErrExpired, ErrForgotten, ErrVersion, ProtocolError ──▶ ended: Run returns it
//
// state.go decides what is sent, frame.go encodes it; transport.go has the goroutines of one transport, run.go
// finds the next one.
package pipe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/lifeline/internal/deadline"
	"github.com/bowline-k8s/bowline/notify"
)

// The defaults of a Config.
const (
	DefaultWindow    = 8 << 20
	DefaultKeepAlive = 15 * time.Second
	DefaultPatience  = 10 * time.Second
)

// Config is what a pipe needs to know. Zero values stand for the defaults.
type Config struct {
	ID ID
	// Dial makes a transport. It is nil on the accepting side, which gets its transports by Attach. Close of a
	// transport must end its pending calls.
	Dial func(context.Context) (net.Conn, error)
	// Resume is how long the pipe waits for a transport before it ends with ErrExpired. There is no default.
	Resume time.Duration
	// Window is the most bytes that each direction holds at this end: written and not received by the other
	// end, or received and not read.
	Window int
	// KeepAlive is how long nothing arrives before a PING asks for an answer, and Patience how long the answer
	// may take before the transport is given up.
	KeepAlive, Patience time.Duration
	// Charge learns by how many bytes the buffers grow or, if negative, shrink. It is called under a lock, must
	// not block, and must not call the pipe. It may be nil.
	Charge func(delta int64)
	// Budget recovers panics of the goroutines that read what the other end sends. It may be nil.
	Budget *budget.Account
}

func (c *Config) validate() error {
	var all []error
	add := func(ok bool, format string, args ...any) {
		if !ok {
			all = append(all, fmt.Errorf(format, args...))
		}
	}
	if c.Window == 0 {
		c.Window = DefaultWindow
	}
	if c.KeepAlive == 0 {
		c.KeepAlive = DefaultKeepAlive
	}
	if c.Patience == 0 {
		c.Patience = DefaultPatience
	}
	add(c.ID.Channel < c.ID.Channels, "there is no channel %d of %d", c.ID.Channel, c.ID.Channels)
	add(c.Resume > 0, "the time to resume is %s", c.Resume)
	add(c.Window > 0 && c.Window <= math.MaxInt32, "a window of %d bytes", c.Window)
	add(c.KeepAlive > 0 && c.Patience > 0, "keepalive after %s, patience of %s", c.KeepAlive, c.Patience)
	return errors.Join(all...)
}

// Pipe is one end of a pipe. It is a net.Conn: Close lets the other end read all that was written, and then
// io.EOF. There is no half-close.
type Pipe struct {
	cfg Config

	readable, writable    notify.Signal // wake one Read or Write, which wakes the next
	work                  notify.Signal // wakes the writer of the transport
	newer                 notify.Signal // Attach left a transport
	closing               chan struct{} // closed by Close
	done                  chan struct{} // closed when the pipe has ended
	writing               chan struct{} // held by the one Write that appends
	readUntil, writeUntil *deadline.Deadline

	mu       sync.Mutex
	state    state
	heard    time.Time // when the transport last carried anything
	armed    bool      // the writer of the transport knows that an ACK is owed
	attached bool
	attempt  uint64 // of the newest transport
	resumed  uint64
	peer     uint32    // window of the other end
	waiting  *Incoming // from Attach, for Run
	err      error     // why the pipe ended; nil before, and after it was closed in order

	// Run has these.
	established bool          // dialling side: a transport was answered
	pause       time.Duration // before the next dial
}

// New makes one end of a pipe. It does nothing before Run.
func New(cfg Config) (*Pipe, error) {
	if err := cfg.validate(); err != nil {
		return nil, fmt.Errorf("configuration of a pipe: %w", err)
	}
	p := &Pipe{cfg: cfg, readable: notify.New(), writable: notify.New(), work: notify.New(), newer: notify.New(),
		closing: make(chan struct{}), done: make(chan struct{}), writing: make(chan struct{}, 1),
		readUntil: deadline.New(), writeUntil: deadline.New()}
	p.state.ring, p.state.window = cfg.Window, cfg.Window
	p.state.in.Charge, p.state.out.Charge = cfg.Charge, cfg.Charge
	return p, nil
}

// Read returns what has been received. After the other end's Close it returns io.EOF once all is read.
func (p *Pipe) Read(b []byte) (int, error) {
	for {
		past := p.readUntil.Passed()
		if done(past) {
			return 0, os.ErrDeadlineExceeded
		}
		n, wait, err := p.tryRead(b)
		if !wait {
			return n, err
		}
		select {
		case <-p.readable:
		case <-past:
		case <-p.closing:
		case <-p.done:
		}
	}
}

func (p *Pipe) tryRead(b []byte) (n int, wait bool, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.state.closing:
		return 0, false, net.ErrClosed
	case len(b) == 0:
		return 0, false, nil
	case p.state.in.Len() > 0:
		now := time.Now()
		n = p.state.read(b, now)
		p.wake(now)
		return n, false, nil
	case p.state.closed:
		p.readable.Send()
		return 0, false, io.EOF
	case p.err != nil:
		return 0, false, p.err
	}
	return 0, true, nil
}

// Write accepts all of b, and waits while there is no room. An error does not say whether the other end has
// received what was accepted.
func (p *Pipe) Write(b []byte) (n int, err error) {
	past := p.writeUntil.Passed()
	if done(past) {
		return 0, os.ErrDeadlineExceeded
	}
	select {
	case p.writing <- struct{}{}:
		defer func() { <-p.writing }()
	case <-past:
		return 0, os.ErrDeadlineExceeded
	case <-p.closing:
		return 0, net.ErrClosed
	}
	for {
		past := p.writeUntil.Passed()
		if done(past) {
			return n, os.ErrDeadlineExceeded
		}
		more, err := p.tryWrite(b[n:])
		n += more
		if err != nil || n == len(b) {
			return n, err
		}
		select {
		case <-p.writable:
		case <-past:
		case <-p.closing:
		case <-p.done:
		}
	}
}

func (p *Pipe) tryWrite(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.state.closing:
		return 0, net.ErrClosed
	case p.err != nil:
		return 0, p.err
	case p.state.closed:
		p.writable.Send()
		return 0, io.ErrClosedPipe
	}
	n := p.state.write(b)
	p.wake(time.Now())
	return n, nil
}

// Close ends the pipe. Run delivers what was written, for as long as the pipe can resume.
func (p *Pipe) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.closing {
		return nil
	}
	close(p.closing)
	now := time.Now()
	p.state.shut(now)
	p.wake(now)
	return nil
}

// wake passes on what a change of the state permits. p.mu is held.
func (p *Pipe) wake(now time.Time) {
	if p.state.in.Len() > 0 || p.state.closed {
		p.readable.Send()
	}
	if p.state.room() > 0 || p.state.closed {
		p.writable.Send()
	}
	_, owed := p.state.ackIn(now)
	if p.state.due(now) || p.state.over() || owed && !p.armed {
		p.armed = true
		p.work.Send()
	}
}

// Done is closed when the pipe has ended; Err says why.
func (p *Pipe) Done() <-chan struct{} { return p.done }

// Err is why the pipe ended; nil before that, and after it was closed in order.
func (p *Pipe) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Stats says how a pipe does.
type Stats struct {
	Attached bool   // there is a transport
	Resumed  uint64 // transports after the first one
	Written  uint64 // bytes, by the user of this end
	Received uint64 // bytes, from the other end
	Held     int    // bytes of memory of the buffers
}

// Stats returns the current figures.
func (p *Pipe) Stats() Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Stats{p.attached, p.resumed, p.state.out.End(), p.state.in.End(), p.state.out.Held() + p.state.in.Held()}
}

// Address is the address of both ends of a pipe.
type Address ID

func (a Address) Network() string { return "lifeline" }
func (a Address) String() string  { return fmt.Sprintf("%x/%d", a.End, a.Channel) }

func (p *Pipe) LocalAddr() net.Addr  { return Address(p.cfg.ID) }
func (p *Pipe) RemoteAddr() net.Addr { return Address(p.cfg.ID) }

func (p *Pipe) SetDeadline(t time.Time) error {
	p.readUntil.Set(t)
	p.writeUntil.Set(t)
	return nil
}

func (p *Pipe) SetReadDeadline(t time.Time) error {
	p.readUntil.Set(t)
	return nil
}

func (p *Pipe) SetWriteDeadline(t time.Time) error {
	p.writeUntil.Set(t)
	return nil
}

func done(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
