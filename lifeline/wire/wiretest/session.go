// Package wiretest has a pair of sessions in memory, for the tests of both ends of a lifeline, and the suite
// that every implementation of wire.Session passes.
package wiretest

import (
	"context"
	"net"
	"reflect"
	"sync"

	"github.com/bowline-k8s/bowline/lifeline/wire"
)

const (
	maxFlows  = 64        // that one end may have opened; one more is Exhausted
	maxQueued = 64        // datagrams on their way in one direction; one more is ErrFull
	window    = 64 * 1024 // bytes of a stream on their way in one direction; Write waits for room
)

// Session is one end of a session in memory. The link can be cut: what is sent then arrives once it is back.
type Session struct {
	peer      *Session
	session   *shared
	opened    chan *Stream // by the other end
	datagrams chan wire.Datagram
	table     latest[wire.Table]
	status    latest[wire.Status]
}

// shared is what both ends of a session have in common.
type shared struct {
	mu      sync.Mutex
	streams map[*Stream]bool
	err     error
	done    chan struct{}
	up      chan struct{} // closed while the link is up
}

// Pair returns both ends of a new session.
func Pair() (helper, exit *Session) {
	s := &shared{streams: map[*Stream]bool{}, done: make(chan struct{}), up: make(chan struct{})}
	close(s.up)
	helper, exit = newSession(s), newSession(s)
	helper.peer, exit.peer = exit, helper
	return helper, exit
}

func newSession(s *shared) *Session {
	return &Session{
		session: s, opened: make(chan *Stream, maxFlows), datagrams: make(chan wire.Datagram, maxQueued),
		table: newLatest[wire.Table](), status: newLatest[wire.Status](),
	}
}

// Cut cuts the link, for both ends. Join ends the cut.
func (s *Session) Cut() {
	s.session.mu.Lock()
	defer s.session.mu.Unlock()
	select {
	case <-s.session.up:
		s.session.up = make(chan struct{})
	default:
	}
}

func (s *Session) Join() {
	s.session.mu.Lock()
	defer s.session.mu.Unlock()
	select {
	case <-s.session.up:
	default:
		close(s.session.up)
	}
}

// crossed waits until the link is up.
func (s *shared) crossed(ctx context.Context) error {
	s.mu.Lock()
	up := s.up
	s.mu.Unlock()
	select {
	case <-up:
		return nil
	case <-s.done:
		return s.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// next returns what the other end has sent, once the link is up.
func next[T any](ctx context.Context, s *shared, from <-chan T) (sent T, err error) {
	if err := s.crossed(ctx); err != nil {
		return sent, err
	}
	select {
	case sent = <-from:
		return sent, nil
	case <-s.done:
		return sent, s.err
	case <-ctx.Done():
		return sent, ctx.Err()
	}
}

func (s *Session) Open(_ context.Context, f wire.Flow) (wire.Stream, error) {
	s.session.mu.Lock()
	defer s.session.mu.Unlock()
	if s.session.err != nil {
		return nil, s.session.err
	}
	if len(s.session.streams) >= maxFlows {
		return nil, wire.Error{Refusal: wire.Exhausted}
	}
	out, in := newHalf(), newHalf()
	own := &Stream{flow: f, session: s.session, in: in, out: out}
	s.session.streams[own] = true
	s.peer.opened <- &Stream{flow: f, session: s.session, in: out, out: in} // has room for maxFlows
	return own, nil
}

func (s *Session) Accept(ctx context.Context) (wire.Stream, error) {
	opened, err := next(ctx, s.session, s.opened)
	if err != nil {
		return nil, err
	}
	return opened, nil
}

func (s *Session) Send(d wire.Datagram) error {
	if err := s.Err(); err != nil {
		return err
	}
	d.Payload = append([]byte(nil), d.Payload...)
	select {
	case s.peer.datagrams <- d:
		return nil
	default:
		return wire.ErrFull
	}
}

func (s *Session) Receive(ctx context.Context) (wire.Datagram, error) {
	return next(ctx, s.session, s.datagrams)
}

func (s *Session) SetTable(t wire.Table) error { return put(s, &s.peer.table, t) }

func (s *Session) Table(ctx context.Context) (wire.Table, error) { return s.table.get(ctx, s.session) }

func (s *Session) Report(st wire.Status) error { return put(s, &s.peer.status, st) }

func (s *Session) Status(ctx context.Context) (wire.Status, error) {
	return s.status.get(ctx, s.session)
}

func (s *Session) Done() <-chan struct{} { return s.session.done }

func (s *Session) Err() error {
	s.session.mu.Lock()
	defer s.session.mu.Unlock()
	return s.session.err
}

// Close ends the session for both ends.
func (s *Session) Close() error {
	s.session.mu.Lock()
	defer s.session.mu.Unlock()
	if s.session.err != nil {
		return nil
	}
	s.session.err = net.ErrClosed
	for stream := range s.session.streams {
		stream.in.fail(wire.Error{Refusal: wire.Broken})
		stream.out.fail(wire.Error{Refusal: wire.Broken})
	}
	close(s.session.done)
	return nil
}

// latest is a value of which only the newest one counts.
type latest[T any] struct {
	values   chan T // at most one
	mu       *sync.Mutex
	returned *T
}

func newLatest[T any]() latest[T] { return latest[T]{values: make(chan T, 1), mu: &sync.Mutex{}} }

func put[T any](s *Session, l *latest[T], value T) error {
	if err := s.Err(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.values:
	default:
	}
	l.values <- value // only put sends
	return nil
}

func (l *latest[T]) get(ctx context.Context, s *shared) (T, error) {
	for {
		value, err := next(ctx, s, l.values)
		if err != nil {
			return value, err
		}
		l.mu.Lock()
		same := l.returned != nil && reflect.DeepEqual(*l.returned, value)
		l.returned = &value
		l.mu.Unlock()
		if !same {
			return value, nil
		}
	}
}
