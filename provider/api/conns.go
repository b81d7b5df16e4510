package api

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"slices"
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
// forward over SSH buffers up to 2 MiB of a connection that is not read. A handshake and a first
// request take 4 KiB; Strangers has what they cost. A stranger may send as long a header as any
// caller, because the API server sends a long command in the first request of a connection.
var defaultBounds = bounds{total: 512, strangers: 64, sent: 512 << 10, strange: 30 * time.Second, answer: 30 * time.Second}

// conns is a listener that counts its connections. A connection is a stranger until one of its
// requests has been authorized. If there are too many strangers, the oldest one of the address with
// the most of them is closed, so that a flood from one address does not cost callers from others.
// If they have sent too much, the one that has sent the most is closed, of the address that has
// sent the most. The same applies to the strangers of the process.
type conns struct {
	net.Listener
	bounds bounds
	all    *Strangers

	// all.mu guards the fields below.
	open      int
	strangers map[string][]*caller // by IP, oldest first
	strange   int                  // number of strangers
	sent      int                  // bytes that strangers have sent
}

func newConns(l net.Listener, b bounds, all *Strangers) *conns {
	return &conns{Listener: l, bounds: b, all: all, strangers: map[string][]*caller{}}
}

// caller is a connection of conns.
type caller struct {
	net.Conn
	of     *conns
	from   string
	number int         // in the order of the process's strangers
	timer  *time.Timer // disconnects it while it is a stranger
	// gone ends when it is disconnected as a stranger.
	gone    context.Context
	cancel  context.CancelFunc
	through atomic.Bool // known, without the lock
	// compressed: it may use HTTP/2, whose headers take more memory for their bytes. Only its reader
	// uses it.
	compressed bool

	// of.all.mu guards the fields below.
	known    bool // not a stranger, or not any more
	closed   bool // its place is free
	left     bool // the server has closed it
	requests int  // that are being admitted
	sent     int  // bytes, while it was a stranger
	ending   int  // sent, from when it was disconnected as a stranger until it has ended
}

func (c *caller) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 && !c.through.Load() {
		if c.compressed {
			c.count(2 * n)
		} else {
			c.count(n)
		}
	}
	return n, err
}

// count counts n as sent by c, disconnects strangers until they have not sent too much, and waits
// until those have ended.
func (c *caller) count(n int) {
	all := c.of.all
	all.mu.Lock()
	defer all.mu.Unlock()
	if c.known {
		return
	}
	all.charge(c, n)
	if over := all.excess(c.of); len(over) > 0 {
		all.mu.Unlock()
		for _, o := range over {
			o.disconnect()
		}
		all.mu.Lock()
	}
	all.wait(c)
}

// disconnect closes the connection of a stranger that was removed. The server gets the error, and
// closes the caller.
func (c *caller) disconnect() { _ = c.Conn.Close() }

// Accept accepts the next connection, and closes those above the total.
func (l *conns) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c, over := l.take(raw)
		for _, o := range over {
			o.disconnect()
		}
		if c == nil {
			raw.Close()
			continue
		}
		l.all.mu.Lock()
		l.all.wait(c)
		l.all.mu.Unlock()
		return c, nil
	}
}

// take makes a stranger of raw. It removes the strangers whose place raw gets, and returns them to
// be disconnected. c is nil if there is no room.
func (l *conns) take(raw net.Conn) (c *caller, over []*caller) {
	all := l.all
	all.mu.Lock()
	defer all.mu.Unlock()
	switch {
	case l.strange >= l.bounds.strangers:
		over = append(over, all.remove(all.oldest(l)))
	case l.open >= l.bounds.total:
		return nil, nil
	case all.strange >= all.most:
		over = append(over, all.remove(all.oldest(nil)))
	}
	c = &caller{Conn: raw, of: l, from: address(raw)}
	c.gone, c.cancel = context.WithCancel(context.Background())
	c.timer = time.AfterFunc(l.bounds.strange, c.expire)
	l.open++
	all.add(c)
	return c, append(over, all.excess(l)...)
}

// expire disconnects c if it is still a stranger.
func (c *caller) expire() {
	all := c.of.all
	all.mu.Lock()
	known := c.known
	if !known {
		all.remove(c)
	}
	all.mu.Unlock()
	if !known {
		c.disconnect()
	}
}

// Close closes the connection and frees its place. Only the server calls it.
func (c *caller) Close() error {
	all := c.of.all
	all.mu.Lock()
	if !c.known {
		all.remove(c)
	} else if !c.closed {
		c.closed = true
		c.of.open--
	}
	c.left = true
	all.end(c)
	all.mu.Unlock()
	c.cancel()
	return c.Conn.Close()
}

func address(c net.Conn) string {
	addr := c.RemoteAddr().String()
	if ip, _, err := net.SplitHostPort(addr); err == nil {
		return ip
	}
	return addr
}

// greeted notes whether the connection may use HTTP/2.
func greeted(hello *tls.ClientHelloInfo) (*tls.Config, error) {
	if c, ok := hello.Conn.(*caller); ok {
		c.compressed = slices.Contains(hello.SupportedProtos, "h2")
	}
	return nil, nil // the server's own configuration
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
	if !ok || c.through.Load() {
		return
	}
	c.of.all.mu.Lock()
	defer c.of.all.mu.Unlock()
	c.of.all.forget(c)
}

// stranger reports whether no request of this connection has been authorized yet.
func stranger(ctx context.Context) bool {
	c, ok := ctx.Value(callerKey{}).(*caller)
	return ok && !c.through.Load()
}

// admission begins to admit a request. If its caller is a stranger, the request counts as sent, and
// its context ends when the caller is disconnected: net/http does not notice that while a body is
// left. The caller of admission calls done at the end.
func admission(r *http.Request) (_ *http.Request, done func()) {
	c, ok := r.Context().Value(callerKey{}).(*caller)
	if !ok || c.through.Load() {
		return r, func() {}
	}
	all := c.of.all
	all.mu.Lock()
	c.requests++
	all.mu.Unlock()
	c.count(requestCost)
	ctx, cancel := context.WithCancel(r.Context())
	stop := context.AfterFunc(c.gone, cancel)
	return r.WithContext(ctx), func() {
		stop()
		cancel()
		all.mu.Lock()
		defer all.mu.Unlock()
		c.requests--
		all.end(c)
	}
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
