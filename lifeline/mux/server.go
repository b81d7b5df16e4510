package mux

import (
	"context"
	"net"
	"slices"
	"sync"

	"github.com/bowline-k8s/bowline/lifeline/pipe"
	"github.com/bowline-k8s/bowline/notify"
)

const (
	// greetings is how many connections may be without a HELLO at a time.
	greetings = 64
	// waitingMost is how many sessions may wait for the handler of the one before.
	waitingMost = 8
	// remembered is how many dialling ends are known to have ended, so that what is late of them is refused.
	remembered = 16
)

// Server makes sessions from the connections of one listener. A connection's HELLO names the dialling end and
// the pipe; a new end replaces the former one.
type Server struct {
	cfg      Config
	listener net.Listener
	handle   func(context.Context, *Session)
	work     notify.Signal // wakes Run

	mu      sync.Mutex
	current *Session   // of the newest end; nil if it has ended
	waiting []*Session // not handled yet, the current one last
	gone    []pipe.End
	stopped bool // no more sessions
}

// NewServer makes a server. Run calls handle for one session after the other, with a context that ends with
// the session; the session ends when handle returns. cfg.Pipes has no effect.
func NewServer(cfg Config, l net.Listener, handle func(context.Context, *Session)) (*Server, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	return &Server{cfg: cfg, listener: l, handle: handle, work: notify.New()}, nil
}

// Run accepts connections until ctx ends, whose error it returns, or the listener fails. It closes the listener.
func (s *Server) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	defer all.Wait()
	defer context.AfterFunc(ctx, func() { s.listener.Close() })()
	all.Go(func() {
		defer s.cfg.Budget.Recover("the listener of the lifeline")
		cancel(s.accept(ctx, &all))
	})
	for {
		if session := s.take(); session != nil {
			s.serve(ctx, session)
			continue
		}
		select {
		case <-s.work:
		case <-ctx.Done():
			if s.stop() {
				s.listener.Close()
				return context.Cause(ctx)
			}
		}
	}
}

// stop takes no more sessions, and reports whether none is waiting.
func (s *Server) stop() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	return len(s.waiting) == 0
}

// accept gives each connection to its pipe.
func (s *Server) accept(ctx context.Context, all *sync.WaitGroup) error {
	places := make(chan struct{}, greetings)
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return err
		}
		select {
		case places <- struct{}{}:
		default:
			conn.Close()
			continue
		}
		all.Go(func() {
			defer s.cfg.Budget.Recover("a connection of the lifeline")
			defer func() { <-places }()
			if in, err := pipe.Hello(ctx, conn); err == nil {
				s.route(in)
			}
		})
	}
}

// route gives a transport to its pipe, and begins a session for a new end.
func (s *Server) route(in *pipe.Incoming) {
	session, former := s.session(in)
	if former != nil {
		former.finish(ErrReplaced)
	}
	if session == nil || int(in.ID.Channels) != len(session.channels)+1 {
		in.Forget()
		return
	}
	session.pipes()[in.ID.Channel].Attach(in)
}

// session finds or makes the session of a transport; nil: there is none. former is one that a new one replaces.
func (s *Server) session(in *pipe.Incoming) (session, former *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current != nil && s.current.end == in.ID.End {
		return s.current, nil
	}
	late := !in.Fresh || slices.Contains(s.gone, in.ID.End)
	if late || s.stopped || len(s.waiting) >= waitingMost || in.ID.Channels < 2 || in.ID.Channels > mostPipes+1 {
		return nil, nil
	}
	cfg := s.cfg
	cfg.Pipes = int(in.ID.Channels) - 1
	session, err := newSession(cfg, in.ID.End, nil)
	if err != nil {
		return nil, nil
	}
	former = s.current
	if former != nil {
		s.forget(former)
	}
	s.current = session
	s.waiting = append(s.waiting, session)
	s.work.Send()
	return session, former
}

// forget notes that a session has ended. s.mu is held.
func (s *Server) forget(session *Session) {
	if s.current == session {
		s.current = nil
		s.gone = append(s.gone, session.end)
		s.gone = s.gone[max(0, len(s.gone)-remembered):]
	}
}

func (s *Server) take() *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return nil
	}
	session := s.waiting[0]
	s.waiting = s.waiting[1:]
	return session
}

// serve runs a session and its handler, and waits for both.
func (s *Server) serve(ctx context.Context, session *Session) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var both sync.WaitGroup
	both.Go(func() {
		defer s.cfg.Budget.Recover("a session of the lifeline")
		defer cancel()
		session.Run(ctx) // the handler learns why from Session.Err
		s.mu.Lock()
		defer s.mu.Unlock()
		s.forget(session)
	})
	if session.Err() == nil {
		s.handle(ctx, session)
	}
	session.Close()
	both.Wait()
}
