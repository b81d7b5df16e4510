package api

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// bounds are what one node's API spends on those who call it. A kubelet has none of
// them, and is one node; a process of ours serves the APIs of many.
type bounds struct {
	total     int           // connections
	strangers int           // of them: without an authorized request so far
	sent      int           // bytes that all strangers together have sent
	strange   time.Duration // for the first authorized request of a connection
	answer    time.Duration // for a write of an answer that is no stream
}

// defaultBounds: authenticating and authorizing a first request are two reviews of
// 10 s at most. A forward over SSH holds up to 2 MiB of a connection that is not read.
// What strangers send may be headers without an end, which take twenty times as much
// memory; a handshake and a first request are 4 KiB.
var defaultBounds = bounds{total: 512, strangers: 64, sent: 512 << 10, strange: 30 * time.Second, answer: 30 * time.Second}

// conns is a listener whose connections are counted. A connection is a stranger's until
// a request of it has been authorized. When there are too many strangers, the oldest of
// the address that has the most of them is closed, so that a flood from one address
// costs the callers of others nothing. When they have sent too much, it is the one that has
// sent the most, of the address that has.
type conns struct {
	net.Listener
	bounds bounds

	mu        sync.Mutex
	open      int
	strangers map[string][]*caller // by IP, the oldest first
	strange   int                  // how many strangers there are
	sent      int                  // bytes that they have sent
}

func newConns(l net.Listener, b bounds) *conns {
	return &conns{Listener: l, bounds: b, strangers: map[string][]*caller{}}
}

// caller is a connection of conns.
type caller struct {
	net.Conn
	of      *conns
	from    string
	timer   *time.Timer // closes a stranger
	known   bool        // guarded by of.mu, as closed and sent are
	closed  bool
	sent    int         // bytes, while it was a stranger's
	through atomic.Bool // known, for those who read
}

func (c *caller) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.through.Load() {
		if heaviest := c.of.count(c, n); heaviest != nil {
			heaviest.Close()
		}
	}
	return n, err
}

// count adds what c has sent, and returns who has to go for it.
func (l *conns) count(c *caller, n int) (heaviest *caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.known {
		return nil
	}
	c.sent += n
	l.sent += n
	if l.sent <= l.bounds.sent {
		return nil
	}
	most := -1
	for _, of := range l.strangers {
		sum, largest := 0, of[0]
		for _, s := range of {
			if sum += s.sent; s.sent > largest.sent {
				largest = s
			}
		}
		if sum > most {
			most, heaviest = sum, largest
		}
	}
	return heaviest
}

// Accept refuses what is above the total, and accepts the next.
func (l *conns) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, evicted := l.take(raw)
		if evicted != nil {
			evicted.Close()
		}
		if c != nil {
			return c, nil
		}
		raw.Close()
	}
}

// take makes a stranger of raw, and returns who has to make room for it; no stranger
// if there is no room.
func (l *conns) take(raw net.Conn) (c, evicted *caller) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.strange >= l.bounds.strangers {
		evicted = l.oldest()
	}
	if l.open >= l.bounds.total && evicted == nil {
		return nil, nil
	}
	c = &caller{Conn: raw, of: l, from: address(raw)}
	c.timer = time.AfterFunc(l.bounds.strange, func() { l.expire(c) })
	l.open++
	l.strange++
	l.strangers[c.from] = append(l.strangers[c.from], c)
	return c, evicted
}

// oldest is the oldest stranger of the address with the most of them.
func (l *conns) oldest() *caller {
	var most []*caller
	for _, of := range l.strangers {
		if len(of) > len(most) {
			most = of
		}
	}
	if len(most) == 0 {
		return nil
	}
	return most[0]
}

// expire closes c if it is still a stranger's.
func (l *conns) expire(c *caller) {
	l.mu.Lock()
	known := c.known
	l.mu.Unlock()
	if !known {
		c.Close()
	}
}

// forget takes c out of the strangers; l.mu is held.
func (l *conns) forget(c *caller) {
	if c.known {
		return
	}
	c.known = true
	c.through.Store(true)
	c.timer.Stop()
	l.strange--
	l.sent -= c.sent
	of := l.strangers[c.from]
	for i := range of {
		if of[i] == c {
			of = append(of[:i:i], of[i+1:]...)
			break
		}
	}
	if len(of) == 0 {
		delete(l.strangers, c.from)
	} else {
		l.strangers[c.from] = of
	}
}

// Close gives the place back.
func (c *caller) Close() error {
	c.of.mu.Lock()
	if !c.closed {
		c.closed = true
		c.of.open--
		c.of.forget(c)
	}
	c.of.mu.Unlock()
	return c.Conn.Close()
}

func address(c net.Conn) string {
	addr := c.RemoteAddr().String()
	if ip, _, err := net.SplitHostPort(addr); err == nil {
		return ip
	}
	return addr
}

type callerKey struct{}

// withCaller lets a request find the connection that it came by.
func withCaller(ctx context.Context, c net.Conn) context.Context {
	if over, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = over.NetConn()
	}
	if who, ok := c.(*caller); ok {
		return context.WithValue(ctx, callerKey{}, who)
	}
	return ctx
}

// welcome notes that a request of this connection was authorized.
func welcome(ctx context.Context) {
	c, ok := ctx.Value(callerKey{}).(*caller)
	if !ok {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.forget(c)
}

// stranger says whether no request of this connection has been authorized yet.
func stranger(ctx context.Context) bool {
	c, ok := ctx.Value(callerKey{}).(*caller)
	if !ok {
		return false
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	return !c.known
}

// prompt gives each write of an answer a time, as who does not read would hold its
// connection and the answer for ever. The server lifts it after the answer.
type prompt struct {
	http.ResponseWriter
	each time.Duration
}

func (p prompt) hurry() {
	// A writer without deadlines is a test's.
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(p.each))
}

func (p prompt) Write(b []byte) (int, error) {
	p.hurry()
	return p.ResponseWriter.Write(b)
}

func (p prompt) Unwrap() http.ResponseWriter { return p.ResponseWriter }
