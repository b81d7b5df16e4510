// Package mux carries what the two ends of a lifeline tell each other (package wire) over pipes: streams over
// several of them, so that they share the windows of several SSH channels, and all else over one of its own, so
// that a DNS answer does not wait behind a download.
//
// Each stream has credit for the bytes that its reader has not taken, so a slow reader stops its own stream
// only. A stream's first bytes follow its OPEN at once. A half is closed by FIN of its writer or STOP of its
// reader; RESET ends both halves.
//
// A session has two goroutines for each pipe besides those of the pipe: read.go applies the frames that arrive,
// write.go lets the streams take turns. All that changes is guarded by Session.mu.
package mux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/lifeline/pipe"
	"github.com/bowline-k8s/bowline/lifeline/wire"
	"github.com/bowline-k8s/bowline/notify"
)

// The defaults of a Config.
const (
	DefaultPipes     = 4
	DefaultFlows     = 2048
	DefaultMemory    = 16 << 20
	DefaultMaxCredit = 1 << 20
	DefaultDatagrams = 256
	DefaultResume    = time.Minute
)

const (
	// mostPipes is the most pipes for streams that the accepting end takes.
	mostPipes = 16
	// initialCredit is what a stream may send before its reader has said anything. Both ends must agree.
	initialCredit = 256 << 10
	// asideWindow is the window of the pipe for all but streams.
	asideWindow = 256 << 10
)

// Config has the limits of a session. Zero values stand for the defaults.
type Config struct {
	// Pipes is how many pipes carry streams, at most 16. The dialling end decides.
	Pipes int
	// Flows is the most streams, of both ends, that exist at a time.
	Flows int
	// Memory is the most bytes that a session holds: half of it for readers of streams that are behind, half
	// for what the other end has not yet received. A stream that holds most ends with wire.Exhausted when the
	// first half is used up.
	Memory int
	// MaxCredit is how many bytes a fast reader of a stream lets the other end send ahead.
	MaxCredit int
	// Datagrams is how many of them wait in each direction.
	Datagrams int
	// Resume is how long a session survives without a transport for one of its pipes.
	Resume time.Duration
	// KeepAlive and Patience are those of pipe.Config.
	KeepAlive, Patience time.Duration
	// Charge learns by how many bytes the memory grows or, if negative, shrinks. It is called under locks and
	// by many goroutines, must not block, and must not call the session. It may be nil.
	Charge func(delta int64)
	// Budget recovers panics of the goroutines that read what the other end sends. It may be nil.
	Budget *budget.Account
}

func (c *Config) validate() error {
	for _, d := range []struct {
		value    *int
		standard int
	}{{&c.Pipes, DefaultPipes}, {&c.Flows, DefaultFlows}, {&c.Memory, DefaultMemory}, {&c.MaxCredit, DefaultMaxCredit},
		{&c.Datagrams, DefaultDatagrams}} {
		if *d.value == 0 {
			*d.value = d.standard
		}
	}
	if c.Resume == 0 {
		c.Resume = DefaultResume
	}
	switch {
	case c.Pipes < 1 || c.Pipes > mostPipes:
		return fmt.Errorf("a session with %d pipes for streams: 1 to %d are possible", c.Pipes, mostPipes)
	case c.Flows < 1 || c.Datagrams < 1 || c.MaxCredit < 1:
		return fmt.Errorf("a session with %d flows, %d bytes of credit, %d datagrams", c.Flows, c.MaxCredit, c.Datagrams)
	case c.Memory < 4*initialCredit:
		return fmt.Errorf("a session with %d bytes of memory: at least %d are needed", c.Memory, 4*initialCredit)
	}
	return nil
}

var (
	// ErrEnded: the other end has ended the session in order.
	ErrEnded = errors.New("the other end of the lifeline ended the session")
	// ErrReplaced: another dialling end has begun a session.
	ErrReplaced = errors.New("a newer session took over")
	// ErrTooLarge: a datagram, a table or a status is larger than the session carries.
	ErrTooLarge = errors.New("too large for the lifeline")
	// ErrRole: only the exit has a table to set, and only the helper has a status to report.
	ErrRole = errors.New("this end of the lifeline does not send that")
)

// Session is one end of a session. It implements wire.Session, and does nothing before Run.
type Session struct {
	cfg      Config
	end      pipe.End
	exit     bool // the dialling end
	channels []*channel
	aside    *aside
	done     chan struct{}

	acceptable notify.Signal // wakes one Accept, which wakes the next

	mu       sync.Mutex
	err      error // why the session ended
	flows    int
	held     int // bytes of memory of the streams' readers
	accepted []*Stream
	refused  uint64
	dropped  uint64
}

var _ wire.Session = (*Session)(nil)

// Client returns the exit's end of a session. dial makes a transport for one of the pipes: channel 0 carries
// all but streams, channels 1 to Config.Pipes carry streams.
func Client(cfg Config, dial func(ctx context.Context, channel int) (net.Conn, error)) (*Session, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return newSession(cfg, pipe.NewEnd(), func(channel int) func(context.Context) (net.Conn, error) {
		return func(ctx context.Context) (net.Conn, error) { return dial(ctx, channel) }
	})
}

// newSession makes one end. dial returns the dial function of a channel; it is nil at the accepting end.
func newSession(cfg Config, end pipe.End, dial func(int) func(context.Context) (net.Conn, error)) (*Session, error) {
	s := &Session{cfg: cfg, end: end, exit: dial != nil, done: make(chan struct{}), acceptable: notify.New()}
	for i := range cfg.Pipes + 1 {
		c := pipe.Config{ID: pipe.ID{End: end, Channel: uint8(i), Channels: uint8(cfg.Pipes + 1)}, Resume: cfg.Resume,
			Window: cfg.Memory / 2 / cfg.Pipes, KeepAlive: cfg.KeepAlive, Patience: cfg.Patience, Charge: cfg.Charge, Budget: cfg.Budget}
		if dial != nil {
			c.Dial = dial(i)
		}
		if i == 0 {
			c.Window = asideWindow
		}
		p, err := pipe.New(c)
		if err != nil {
			return nil, err
		}
		if i == 0 {
			s.aside = newAside(s, p)
		} else {
			s.channels = append(s.channels, newChannel(s, p))
		}
	}
	return s, nil
}

// pipes are those of all channels, by their number.
func (s *Session) pipes() []*pipe.Pipe {
	all := []*pipe.Pipe{s.aside.pipe}
	for _, c := range s.channels {
		all = append(all, c.pipe)
	}
	return all
}

// Run carries the session until it ends, and returns why. The end of ctx ends it as Close does.
func (s *Session) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var all sync.WaitGroup
	start := func(what string, f func() error) {
		all.Go(func() {
			defer s.cfg.Budget.Recover(what)
			err := budget.ErrPanicked
			defer func() { s.finish(err) }()
			err = f()
		})
	}
	for i, p := range s.pipes() {
		start("a pipe of the lifeline", func() error {
			if err := p.Run(ctx); err != nil {
				return fmt.Errorf("pipe %d of the lifeline: %w", i, err)
			}
			return ErrEnded
		})
	}
	start("the datagrams of the lifeline", s.aside.read)
	start("the datagrams to the lifeline", s.aside.write)
	for _, c := range s.channels {
		start("the streams of the lifeline", c.read)
		start("the streams to the lifeline", c.write)
	}
	select {
	case <-ctx.Done():
		s.finish(ctx.Err())
	case <-s.done:
	}
	cancel()
	all.Wait()
	return s.Err()
}

// finish ends the session, once: every stream fails at once.
func (s *Session) finish(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return
	}
	s.err = err
	close(s.done)
	for _, c := range s.channels {
		for _, st := range c.streams {
			st.fail(wire.Error{Refusal: wire.Broken})
		}
		c.ready, c.refusals = nil, nil
	}
	s.accepted = nil
	s.aside.discard()
}

// Open begins a flow.
func (s *Session) Open(ctx context.Context, f wire.Flow) (wire.Stream, error) {
	if err := errors.Join(ctx.Err(), checkFlow(f)); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return nil, s.err
	case s.flows >= s.cfg.Flows:
		s.refused++
		return nil, wire.Error{Refusal: wire.Exhausted}
	}
	c := s.channels[spread(f)%uint64(len(s.channels))]
	st := c.add(c.next, f)
	st.announce = true
	c.next += 2
	st.enqueue()
	return st, nil
}

// Accept returns the next flow of the other end.
func (s *Session) Accept(ctx context.Context) (wire.Stream, error) {
	for {
		if st, err := s.tryAccept(); st != nil || err != nil {
			return st, err
		}
		select {
		case <-s.acceptable:
		case <-s.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *Session) tryAccept() (wire.Stream, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	if len(s.accepted) == 0 {
		return nil, nil
	}
	st := s.accepted[0]
	s.accepted[0] = nil
	if s.accepted = s.accepted[1:]; len(s.accepted) > 0 {
		s.acceptable.Send()
	}
	return st, nil
}

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.done }

// Err says why the session ended, or is nil.
func (s *Session) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Close ends the session. The other end learns it from Run, if there is a transport.
func (s *Session) Close() error {
	s.finish(net.ErrClosed)
	return nil
}

// Stats says how a session does.
type Stats struct {
	Flows          int    // streams that exist
	Held           int    // bytes of memory of streams and pipes
	Pipes          int    // all pipes
	Attached       int    // pipes that have a transport
	Resumed        uint64 // transports after the first one of each pipe
	Sent, Received uint64 // bytes, with the frames of the session
	Refused        uint64 // flows, by this end, because there were too many or they held too much
	Dropped        uint64 // datagrams, in either direction
}

// Stats returns the current figures.
func (s *Session) Stats() Stats {
	s.mu.Lock()
	all := Stats{Flows: s.flows, Held: s.held, Refused: s.refused, Dropped: s.dropped}
	s.mu.Unlock()
	for _, p := range s.pipes() {
		one := p.Stats()
		all.Pipes++
		if one.Attached {
			all.Attached++
		}
		all.Held += one.Held
		all.Resumed += one.Resumed
		all.Sent += one.Written
		all.Received += one.Received
	}
	return all
}
