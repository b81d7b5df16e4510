package shell

import (
	"io"
	"sync"

	"github.com/bowline-k8s/bowline/host/budget"
)

// piece is how much of a stream is read at a time, in bytes. Every shell of every host keeps two
// buffers of this size, and most replies are smaller.
const piece = 4 << 10

// stream is one stream of a shell. It is read as long as the shell lives, also between requests,
// because the SSH library would buffer unread data packet by packet.
type stream struct {
	name   string
	budget *budget.Account

	mu    sync.Mutex
	to    *collector // of the current request
	done  chan<- error
	idle  []byte // the first bytes since the last request
	since int64  // number of bytes since then
	err   error  // why the stream has ended
}

// read passes the stream's bytes to the current request, until the stream ends or exceeds a
// budget.
func (s *stream) read(from io.Reader) {
	err := budget.ErrPanicked
	defer func() { s.end(err) }()
	buf := make([]byte, piece)
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

// take counts what arrives between two requests; an error ends the stream.
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

// attach gives c the bytes from now on, and counts earlier ones as noise before its answer. done
// must have room for the one result that it gets.
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
