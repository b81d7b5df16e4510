package stream

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// idleConn closes itself after a period without reads and writes.
type idleConn struct {
	net.Conn
	idle  time.Duration
	last  atomic.Int64 // nanoseconds since start
	start time.Time

	mu     sync.Mutex
	timer  *time.Timer
	closed bool
}

func newIdleConn(c net.Conn, idle time.Duration) *idleConn {
	i := &idleConn{Conn: c, idle: idle, start: time.Now()}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.timer = time.AfterFunc(idle, i.check)
	return i
}

// check closes the connection if it is idle for long enough, or else sets the timer again.
func (i *idleConn) check() {
	quiet := time.Since(i.start) - time.Duration(i.last.Load())
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return
	}
	if quiet < i.idle {
		i.timer.Reset(i.idle - quiet)
		return
	}
	i.closed = true
	_ = i.Conn.Close()
}

func (i *idleConn) touch(n int, err error) (int, error) {
	if n > 0 {
		i.last.Store(int64(time.Since(i.start)))
	}
	return n, err
}

func (i *idleConn) Read(b []byte) (int, error)  { return i.touch(i.Conn.Read(b)) }
func (i *idleConn) Write(b []byte) (int, error) { return i.touch(i.Conn.Write(b)) }

func (i *idleConn) Close() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.closed {
		return net.ErrClosed
	}
	i.closed = true
	i.timer.Stop()
	return i.Conn.Close()
}
