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
	heard        atomic.Int64 // Unix nanoseconds of the last bytes received
	broken       atomic.Bool  // the socket has failed or is closed
	once         sync.Once
	closeErr     error
}

func newSocket(c net.Conn, writeTimeout time.Duration) *socket {
	s := &socket{Conn: c, writeTimeout: writeTimeout}
	s.heard.Store(time.Now().UnixNano())
	return s
}

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if n > 0 {
		s.heard.Store(time.Now().UnixNano())
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
func (s *socket) silence(now time.Time) time.Duration {
	return now.Sub(time.Unix(0, s.heard.Load()))
}
