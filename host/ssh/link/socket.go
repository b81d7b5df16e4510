package link

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// socket is the net.Conn below an SSH connection. A write that does not get through
// in time ends it, so that a machine that swallows cannot hold a writer for ever;
// when bytes last came from the machine is what keepalives go by.
type socket struct {
	net.Conn
	writeTimeout time.Duration
	born         time.Time
	heard        atomic.Int64 // of the last bytes received: nanoseconds since born, by the monotonic clock
	broken       atomic.Bool  // the socket has failed or is closed
	once         sync.Once
	closeErr     error
}

func newSocket(c net.Conn, writeTimeout time.Duration) *socket {
	return &socket{Conn: c, writeTimeout: writeTimeout, born: time.Now()}
}

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if n > 0 {
		s.heard.Store(int64(time.Since(s.born)))
	}
	if err != nil {
		// Before the channels see their end: they tell the link's from their own by it.
		s.broken.Store(true)
	}
	return n, err
}

func (s *socket) Write(p []byte) (int, error) {
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

// silence is how long nothing came.
func (s *socket) silence() time.Duration {
	return time.Since(s.born) - time.Duration(s.heard.Load())
}
