package link

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// socket is the net.Conn below an SSH connection. A write that times out closes it, so that a
// host that accepts no data cannot block a writer for ever. It records when the last bytes
// arrived, which the keepalives need.
type socket struct {
	net.Conn
	writeTimeout time.Duration
	born         time.Time
	heard        atomic.Int64 // when the last bytes arrived: nanoseconds since born, by the monotonic clock
	broken       atomic.Bool  // the socket has failed or is closed
	writing      atomic.Int64 // when the current write began, as in heard; 0: there is none
	unread       unread
	once         sync.Once
	closeErr     error
}

func newSocket(c net.Conn, writeTimeout time.Duration) *socket {
	s := &socket{Conn: c, writeTimeout: writeTimeout, born: time.Now()}
	s.unread.streams, s.unread.hangs = map[*stream]bool{}, func() bool {
		since := s.writing.Load()
		return since != 0 && time.Since(s.born)-time.Duration(since) > resting/2
	}
	return s
}

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if n > 0 {
		s.heard.Store(int64(time.Since(s.born)))
		s.unread.receive(n)
	}
	if err != nil {
		// Set it before the channels see their end: it tells them whether the link ended.
		s.broken.Store(true)
	}
	return n, err
}

func (s *socket) Write(p []byte) (int, error) {
	s.writing.Store(int64(time.Since(s.born)) + 1)
	defer s.writing.Store(0)
	s.Conn.SetWriteDeadline(time.Now().Add(s.writeTimeout))
	n, err := s.Conn.Write(p)
	if err != nil {
		s.Close()
	}
	return n, err
}

func (s *socket) Close() error {
	s.once.Do(func() {
		s.broken.Store(true)
		s.closeErr = s.Conn.Close()
	})
	return s.closeErr
}

// silence is how long nothing has arrived.
func (s *socket) silence() time.Duration {
	return time.Since(s.born) - time.Duration(s.heard.Load())
}
