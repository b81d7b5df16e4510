package shell

import (
	"io"
	"sync"

	"github.com/bowline-k8s/bowline/host/budget"
)

// stream is one stream of a shell. It is read as long as the shell lives, also between
// two requests: what is not read is held by the SSH library, packet by packet.
type stream struct {
	name   string
	budget *budget.Account

	mu    sync.Mutex
	to    *collector // of the request that is under way
	done  chan<- error
	idle  []byte // the first of what came since the last request
	since int64  // bytes that came since then
	err   error  // why the stream has ended
}

// read gives the stream's bytes to the request that is under way, until it ends or has
// exceeded a budget.
func (s *stream) read(from io.Reader) {
	err := budget.ErrPanicked
	defer func() { s.end(err) }()
	buf := make([]byte, 32<<10)
	for {
		n, readErr := from.Read(buf)
		if n > 0 {
			if err = s.take(buf[:n]); err != nil {
				return
			}
		}
		if err = readErr; err != nil {
			return
		}
		err = budget.ErrPanicked
	}
}

// take counts what comes between two requests; an error ends the stream.
func (s *stream) take(p []byte) error {
	s.mu.Lock()
	to := s.to
	if to == nil {
		defer s.mu.Unlock()
		s.idle = append(s.idle, p[:min(len(p), maxNoise-len(s.idle))]...)
		if s.since += int64(len(p)); s.since > s.budget.Limit(budget.OutputBytes) {
			return s.budget.Exceed(budget.OutputBytes, "a shell that was asked nothing, on its standard "+s.name)
		}
		return nil
	}
	s.mu.Unlock()
	done, err := to.feed(p)
	if done || err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.done <- err
		s.to, s.done = nil, nil
	}
	return err
}

// attach gives a request what comes from now on, and counts what came before as the noise
// before its answer. done gets the result once: it has room for that.
func (s *stream) attach(c *collector, done chan<- error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.before = s.since - int64(len(s.idle))
	_, err := c.feed(s.idle)
	s.idle, s.since = nil, 0
	if err == nil {
		err = s.err
	}
	if err != nil {
		done <- err
		return
	}
	s.to, s.done = c, done
}

func (s *stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
	if s.done != nil {
		s.done <- err
		s.to, s.done = nil, nil
	}
}
