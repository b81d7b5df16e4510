package api

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// bounds are what one node's API spends on its callers. A kubelet has no such bounds, but serves
// one node; a Bowline process serves the APIs of many.
type bounds struct {
	total     int           // connections
	strangers int           // the part of them without an authorized request so far
	sent      int           // bytes that all strangers together may have sent
	strange   time.Duration // time until the first authorized request of a connection
	answer    time.Duration // time for each write of an answer that is not a stream
}

// defaultBounds: authenticating and authorizing a first request takes two reviews of up to 10 s. A
// forward over SSH buffers up to 2 MiB of a connection that is not read. Strangers may send endless
// headers, which take twenty times as much memory; a handshake and a first request take 4 KiB.
var defaultBounds = bounds{total: 512, strangers: 64, sent: 512 << 10, strange: 30 * time.Second, answer: 30 * time.Second}

// conns is a listener that counts its connections. A connection is a stranger until one of its
// requests has been authorized. If there are too many strangers, the oldest one of the address with
// the most of them is closed, so that a flood from one address does not cost callers from others.
// If they have sent too much, the one that has sent the most is closed, of the address that has
// sent the most.
type conns struct {
	net.Listener
	bounds bounds

	mu        sync.Mutex
	open      int
	strangers map[string][]*caller // by IP, oldest first
	strange   int                  // number of strangers
	sent      int                  // bytes that strangers have sent
}

func newConns(l net.Listener, b bounds) *conns {
	return &conns{Listener: l, bounds: b, strangers: map[string][]*caller{}}
}

// caller is a connection of conns.
type caller struct {
	net.Conn
	of      *conns
	from    string
	timer   *time.Timer // closes it while it is a stranger
	known   bool        // not a stranger; of.mu guards known, closed and sent
	closed  bool
	sent    int         // bytes, while it was a stranger
	through atomic.Bool // known, for Read without the lock
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

// count adds n to what c has sent, and returns the stranger to close if that is too much.
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

// Accept accepts the next connection, and closes those above the total.
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

// take makes a stranger of raw. It returns the stranger to close for it, if any, and a nil c if
// there is no room.
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

// expire closes c if it is still a stranger.
func (l *conns) expire(c *caller) {
	l.mu.Lock()
	known := c.known
	l.mu.Unlock()
	if !known {
		c.Close()
	}
}

// forget makes c known. The caller holds l.mu.
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

// Close closes the connection and frees its place.
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

// withCaller lets a request find its connection.
func withCaller(ctx context.Context, c net.Conn) context.Context {
	if over, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = over.NetConn()
	}
	if who, ok := c.(*caller); ok {
		return context.WithValue(ctx, callerKey{}, who)
	}
	return ctx
}

// welcome records that a request of this connection was authorized.
func welcome(ctx context.Context) {
	c, ok := ctx.Value(callerKey{}).(*caller)
	if !ok {
		return
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	c.of.forget(c)
}

// stranger reports whether no request of this connection has been authorized yet.
func stranger(ctx context.Context) bool {
	c, ok := ctx.Value(callerKey{}).(*caller)
	if !ok {
		return false
	}
	c.of.mu.Lock()
	defer c.of.mu.Unlock()
	return !c.known
}

// prompt sets a deadline for each write of an answer, because a caller that does not read would
// hold its connection and the answer forever. The server clears it after the answer.
type prompt struct {
	http.ResponseWriter
	each time.Duration
}

func (p prompt) hurry() {
	// only writers in tests have no deadlines
	_ = http.NewResponseController(p.ResponseWriter).SetWriteDeadline(time.Now().Add(p.each))
}

func (p prompt) Write(b []byte) (int, error) {
	p.hurry()
	return p.ResponseWriter.Write(b)
}

func (p prompt) Unwrap() http.ResponseWriter { return p.ResponseWriter }
