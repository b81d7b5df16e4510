package wiretest

import (
	"context"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// Stream is one end of a flow in memory.
type Stream struct {
	flow        wire.Flow
	session     *shared
	in, out     *half
	read, write deadline
}

func (s *Stream) Flow() wire.Flow { return s.flow }

func (s *Stream) Read(p []byte) (int, error) {
	ctx, cancel := s.read.context()
	defer cancel()
	for {
		if err := s.session.crossed(ctx); ctx.Err() != nil {
			return 0, os.ErrDeadlineExceeded
		} else if err != nil {
			return 0, wire.Error{Refusal: wire.Broken}
		}
		n, err, changed := s.in.read(p)
		if changed == nil {
			return n, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, os.ErrDeadlineExceeded
		}
	}
}

func (s *Stream) Write(p []byte) (written int, err error) {
	ctx, cancel := s.write.context()
	defer cancel()
	for len(p) > 0 {
		n, err, changed := s.out.write(p)
		written, p = written+n, p[n:]
		if err != nil {
			return written, err
		}
		if changed == nil {
			continue
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return written, os.ErrDeadlineExceeded
		}
	}
	return written, nil
}

func (s *Stream) CloseWrite() error {
	s.out.end(io.EOF)
	return nil
}

// Close ends both directions. What the other end writes afterwards fails with Broken.
func (s *Stream) Close() error {
	s.out.end(io.EOF)
	s.in.end(wire.Error{Refusal: wire.Broken})
	s.leave()
	return nil
}

// Reset discards what has not been delivered.
func (s *Stream) Reset(r wire.Refusal) {
	s.in.fail(wire.Error{Refusal: r})
	s.out.fail(wire.Error{Refusal: r})
	s.leave()
}

func (s *Stream) leave() {
	s.session.mu.Lock()
	defer s.session.mu.Unlock()
	for other := range s.session.streams {
		if other == s || other.in == s.out {
			delete(s.session.streams, other)
		}
	}
}

func (s *Stream) LocalAddr() net.Addr  { return net.TCPAddrFromAddrPort(s.flow.Src) }
func (s *Stream) RemoteAddr() net.Addr { return net.TCPAddrFromAddrPort(s.flow.Dst) }

func (s *Stream) SetDeadline(t time.Time) error {
	s.read.set(t)
	s.write.set(t)
	return nil
}

func (s *Stream) SetReadDeadline(t time.Time) error {
	s.read.set(t)
	return nil
}

func (s *Stream) SetWriteDeadline(t time.Time) error {
	s.write.set(t)
	return nil
}

// half is one direction of a stream.
type half struct {
	mu      sync.Mutex
	data    []byte
	err     error         // of a Read that finds no data, and of each Write
	changed chan struct{} // closed at each change
}

func newHalf() *half { return &half{changed: make(chan struct{})} }

func (h *half) note() {
	close(h.changed)
	h.changed = make(chan struct{})
}

// read returns a channel if there is nothing to return yet.
func (h *half) read(p []byte) (int, error, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.data) == 0 && h.err == nil && len(p) > 0 {
		return 0, nil, h.changed
	}
	if len(h.data) == 0 && len(p) > 0 {
		return 0, h.err, nil
	}
	n := copy(p, h.data)
	h.data = append([]byte(nil), h.data[n:]...)
	h.note()
	return n, nil, nil
}

// write returns a channel if there is no room yet.
func (h *half) write(p []byte) (int, error, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch room := window - len(h.data); {
	case h.err == io.EOF:
		return 0, net.ErrClosed, nil
	case h.err != nil:
		return 0, h.err, nil
	case room == 0:
		return 0, nil, h.changed
	default:
		n := min(room, len(p))
		h.data = append(h.data, p[:n]...)
		h.note()
		return n, nil, nil
	}
}

// end ends the direction after the data.
func (h *half) end(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err == nil {
		h.err = err
		h.note()
	}
}

// fail ends the direction at once.
func (h *half) fail(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.data, h.err = nil, err
	h.note()
}

// deadline is that of Read or of Write. A new one counts for later calls only.
type deadline struct {
	mu sync.Mutex
	at time.Time
}

func (d *deadline) set(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at = t
}

func (d *deadline) context() (context.Context, context.CancelFunc) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at.IsZero() {
		return context.WithCancel(context.Background())
	}
	return context.WithDeadline(context.Background(), d.at)
}
