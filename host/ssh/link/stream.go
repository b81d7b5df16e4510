package link

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// chunk is the size of a stream's buffer between the channel and its user: one SSH packet.
const chunk = 32 << 10

// reader reads from a channel with deadlines, which the channels of x/crypto/ssh lack. From the
// first Read on, one goroutine reads the channel. It ends with the channel, which is at the
// latest the end of the connection.
type reader struct {
	src      io.Reader
	ended    func(error) error // the error to return for that of src
	deadline *deadline
	closed   chan struct{}

	start sync.Once
	data  chan []byte   // from the goroutine
	taken chan struct{} // its buffer may be reused
	end   chan struct{} // closed by the goroutine, after err is set
	err   error

	mu   sync.Mutex // one Read at a time
	rest []byte
}

func newReader(src io.Reader, closed chan struct{}, ended func(error) error) *reader {
	return &reader{src: src, ended: ended, deadline: newDeadline(), closed: closed,
		data: make(chan []byte), taken: make(chan struct{}), end: make(chan struct{})}
}

func (r *reader) pump() {
	buf := make([]byte, chunk)
	for {
		n, err := r.src.Read(buf)
		if n > 0 {
			select {
			case r.data <- buf[:n]:
			case <-r.closed:
				return
			}
			select {
			case <-r.taken:
			case <-r.closed:
				return
			}
		}
		if err != nil {
			r.err = r.ended(err)
			close(r.end)
			return
		}
	}
}

func (r *reader) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	past := r.deadline.passed()
	switch {
	case closedNow(r.closed):
		return 0, net.ErrClosed
	case closedNow(past):
		return 0, os.ErrDeadlineExceeded
	case len(p) == 0:
		return 0, nil
	}
	if len(r.rest) == 0 {
		r.start.Do(func() { go r.pump() })
		select {
		case r.rest = <-r.data:
		case <-r.end:
			return 0, r.err
		case <-r.closed:
			return 0, net.ErrClosed
		case <-past:
			return 0, os.ErrDeadlineExceeded
		}
	}
	n := copy(p, r.rest)
	if r.rest = r.rest[n:]; len(r.rest) == 0 {
		select {
		case r.taken <- struct{}{}:
		case <-r.closed:
		}
	}
	return n, nil
}

func (r *reader) setDeadline(t time.Time) error {
	if closedNow(r.closed) {
		return net.ErrClosed
	}
	r.deadline.set(t)
	return nil
}

// writer writes to a channel with deadlines. From the first Write on, a goroutine writes from a
// copy, because it may still be writing when Write has returned. Data that it has taken counts
// as written, as in the buffer of a socket.
type writer struct {
	dst      io.Writer
	finish   func() error      // ends the direction
	ended    func(error) error // converts an error of dst
	deadline *deadline
	closed   chan struct{}

	start sync.Once
	work  chan []byte
	done  chan error

	mu     sync.Mutex // one Write at a time
	buf    []byte     // belongs to the goroutine while busy
	busy   bool
	failed error
}

func newWriter(dst io.Writer, finish func() error, closed chan struct{}, ended func(error) error) *writer {
	return &writer{dst: dst, finish: finish, ended: ended, deadline: newDeadline(), closed: closed,
		work: make(chan []byte), done: make(chan error, 1)}
}

func (w *writer) pump() {
	for {
		select {
		case data := <-w.work:
			_, err := w.dst.Write(data)
			w.done <- err
			if err != nil {
				return
			}
		case <-w.closed:
			return
		}
	}
}

func (w *writer) Write(p []byte) (n int, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		if err := w.flush(); err != nil {
			return n, err
		}
		switch {
		case closedNow(w.closed):
			return n, net.ErrClosed
		case closedNow(w.deadline.passed()):
			return n, os.ErrDeadlineExceeded
		case n == len(p):
			return n, nil
		}
		w.start.Do(func() { go w.pump() })
		w.buf = append(w.buf[:0], p[n:min(len(p), n+chunk)]...)
		select {
		case w.work <- w.buf:
		case <-w.closed:
			return n, net.ErrClosed
		}
		w.busy = true
		n += len(w.buf)
		switch err := w.flush(); {
		case err != nil && w.failed != nil:
			return n - len(w.buf), err
		case n == len(p):
			return n, nil
		case err != nil:
			return n, err
		}
	}
}

// flush waits until the goroutine has written what it took.
func (w *writer) flush() error {
	for w.busy {
		past := w.deadline.passed()
		if closedNow(past) {
			return os.ErrDeadlineExceeded
		}
		select {
		case err := <-w.done:
			if w.busy = false; err != nil {
				w.failed = w.ended(err)
			}
		case <-w.closed:
			return net.ErrClosed
		case <-past: // unless it was moved in the meantime
		}
	}
	return w.failed
}

func (w *writer) setDeadline(t time.Time) error {
	if closedNow(w.closed) {
		return net.ErrClosed
	}
	w.deadline.set(t)
	return nil
}

// CloseWrite ends the write direction; reads continue.
func (w *writer) CloseWrite() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := w.flush(); err != nil {
		return err
	}
	if closedNow(w.closed) {
		return net.ErrClosed
	}
	w.failed = io.ErrClosedPipe
	return w.finish()
}

// conn is a net.Conn over a channel, with deadlines and half-close.
type conn struct {
	*reader
	*writer
	raw    rawConn
	closed chan struct{}
	once   sync.Once
}

// rawConn is a net.Conn without deadlines.
type rawConn interface {
	io.ReadWriteCloser
	LocalAddr() net.Addr
	RemoteAddr() net.Addr
}

// newConn wraps a channel; the functions convert its errors into those of the link.
func newConn(raw rawConn, readEnded, writeEnded func(error) error) *conn {
	closed := make(chan struct{})
	c := &conn{raw: raw, closed: closed, reader: newReader(raw, closed, readEnded)}
	finish := func() error { return nil }
	if half, ok := raw.(interface{ CloseWrite() error }); ok {
		finish = half.CloseWrite
	}
	c.writer = newWriter(raw, finish, closed, writeEnded)
	return c
}

// Close does not wait for the other side.
func (c *conn) Close() error {
	err := error(net.ErrClosed)
	c.once.Do(func() {
		close(c.closed)
		err = nil
		c.reader.deadline.set(time.Time{})
		c.writer.deadline.set(time.Time{})
		go c.raw.Close() // it may wait for a write that hangs until the link counts as dead
	})
	return err
}

func (c *conn) LocalAddr() net.Addr  { return c.raw.LocalAddr() }
func (c *conn) RemoteAddr() net.Addr { return c.raw.RemoteAddr() }

func (c *conn) SetDeadline(t time.Time) error {
	c.SetReadDeadline(t)
	return c.SetWriteDeadline(t)
}

func (c *conn) SetReadDeadline(t time.Time) error {
	return c.reader.setDeadline(t)
}

func (c *conn) SetWriteDeadline(t time.Time) error {
	return c.writer.setDeadline(t)
}
