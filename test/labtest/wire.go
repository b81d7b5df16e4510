package labtest

import (
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"time"
)

// Wire forwards TCP connections from a port of its own to an address, fails as links do when asked
// to, and counts the bytes.
type Wire struct {
	to       string
	listener net.Listener
	delay    atomic.Int64 // delay of everything read, nanoseconds
	rate     atomic.Int64 // bytes a second in each direction, all connections together; 0: no limit
	swallow  atomic.Bool
	corrupt  atomic.Bool
	forth    lane // to the address
	back     lane

	mu    sync.Mutex
	cut   bool
	pairs map[*pair]bool
	all   sync.WaitGroup
}

// lane is one direction of a wire.
type lane struct {
	carried atomic.Int64 // bytes

	mu   sync.Mutex
	free time.Time // when the bytes sent so far are through
	left int64     // bytes before at is called
	at   func()
}

// pair is a connection and its counterpart.
type pair struct {
	near, far net.Conn
	once      sync.Once
	gone      chan struct{}
}

// NewWire forwards from a port of loopback; Close ends it.
func NewWire(to string) (*Wire, error) { return newWire("127.0.0.1", to) }

// NewWire forwards from a port of the lab's bridge, which an isolated process can reach, to host's
// sshd.
func (l *Lab) NewWire(host string) (*Wire, error) {
	api, err := url.Parse(l.Status.Cluster.APIURL)
	if err != nil {
		return nil, err
	}
	return newWire(api.Hostname(), l.Host(host).SSH.Address)
}

func newWire(address, to string) (*Wire, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		return nil, err
	}
	w := &Wire{to: to, listener: l, pairs: map[*pair]bool{}}
	w.all.Go(w.accept)
	return w, nil
}

// Address is the address to dial.
func (w *Wire) Address() string { return w.listener.Addr().String() }

// Carried returns the bytes that came through, to the address and from it.
func (w *Wire) Carried() (forth, back int64) { return w.forth.carried.Load(), w.back.carried.Load() }

// After calls f once, after n more bytes have been carried to the address and before the next one:
// a fault that f begins strikes in the middle of a stream.
func (w *Wire) After(n int64, f func()) {
	w.forth.mu.Lock()
	defer w.forth.mu.Unlock()
	w.forth.left, w.forth.at = n, f
}

// Cut closes every connection, and each new one at once, until Restore.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for p := range w.pairs {
		p.close()
	}
}

// Swallow reads what is sent and forwards nothing, in either direction and on old and new
// connections, until Restore. Nothing is closed.
func (w *Wire) Swallow() { w.swallow.Store(true) }

// Corrupt flips one bit of every piece that is carried, in either direction, until Restore. Nothing is
// closed: the receiver has to detect it.
func (w *Wire) Corrupt() { w.corrupt.Store(true) }

// Delay delays everything that is sent by d in each direction.
func (w *Wire) Delay(d time.Duration) { w.delay.Store(int64(d)) }

// Throttle limits each direction to this many bytes a second.
func (w *Wire) Throttle(rate int) { w.rate.Store(int64(rate)) }

// Restore ends every fault. It closes connections that lost bytes to Swallow, because a stream cannot
// continue with a gap.
func (w *Wire) Restore() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.swallow.Load() {
		for p := range w.pairs {
			p.close()
		}
	}
	w.cut = false
	w.swallow.Store(false)
	w.corrupt.Store(false)
	w.delay.Store(0)
	w.rate.Store(0)
}

// Close ends everything.
func (w *Wire) Close() {
	w.listener.Close()
	w.Cut()
	w.all.Wait()
}

func (p *pair) close() {
	p.once.Do(func() {
		close(p.gone)
		p.near.Close()
		p.far.Close()
	})
}

func (w *Wire) accept() {
	for {
		near, err := w.listener.Accept()
		if err != nil {
			return
		}
		w.all.Go(func() { w.carry(near) })
	}
}

func (w *Wire) carry(near net.Conn) {
	defer near.Close()
	far, err := net.DialTimeout("tcp", w.to, 10*time.Second)
	if err != nil {
		return
	}
	p := &pair{near: near, far: far, gone: make(chan struct{})}
	defer p.close()
	w.mu.Lock()
	if w.cut {
		w.mu.Unlock()
		return
	}
	w.pairs[p] = true
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.pairs, p)
	}()
	var both sync.WaitGroup
	both.Go(func() { w.pass(p, &w.forth, far, near) })
	both.Go(func() { w.pass(p, &w.back, near, far) })
	both.Wait()
}

// piece is a part of a stream on its way.
type piece struct {
	data []byte
	due  time.Time // when it arrives
}

// pass forwards one direction of a pair until either end is closed. It queues what it reads before
// it writes it, so that a delay does not reduce the throughput.
func (w *Wire) pass(p *pair, l *lane, to io.Writer, from io.Reader) {
	queue := make(chan piece, 64)
	var reader sync.WaitGroup
	reader.Go(func() {
		defer close(queue)
		buf := make([]byte, 64<<10)
		for {
			size := len(buf)
			if rate := w.rate.Load(); rate > 0 {
				size = int(min(max(rate/50, 1), int64(size)))
			}
			n, err := from.Read(buf[:size])
			if n > 0 {
				next := piece{append([]byte(nil), buf[:n]...), time.Now().Add(time.Duration(w.delay.Load()))}
				select {
				case queue <- next:
				case <-p.gone:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	defer reader.Wait()
	defer p.close()
	for next := range queue {
		if !p.wait(next.due) || !p.wait(l.through(len(next.data), w.rate.Load())) {
			return
		}
		for len(next.data) > 0 {
			n, at := l.take(len(next.data))
			if err := w.write(l, to, next.data[:n]); err != nil {
				return
			}
			next.data = next.data[n:]
			if at != nil {
				at()
			}
		}
	}
}

// wait waits until a time, and reports whether the pair still exists then.
func (p *pair) wait(until time.Time) bool {
	d := time.Until(until)
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-p.gone:
		return false
	}
}

// through returns when n more bytes are through, at a rate.
func (l *lane) through(n int, rate int64) time.Time {
	if rate <= 0 {
		return time.Time{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if now := time.Now(); l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(int64(n) * int64(time.Second) / rate))
	return l.free
}

// take returns how many of n bytes may be carried before at is called, and at if it is then due.
func (l *lane) take(n int) (int, func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil || int64(n) < l.left {
		l.left -= int64(n)
		return n, nil
	}
	n, at := int(l.left), l.at
	l.at = nil
	return n, at
}

func (w *Wire) write(l *lane, to io.Writer, data []byte) error {
	if w.swallow.Load() || len(data) == 0 {
		return nil
	}
	if w.corrupt.Load() {
		data[rand.IntN(len(data))] ^= 1 << rand.IntN(8)
	}
	// Count the bytes before the other end can see them: a caller that has an answer finds it
	// counted.
	l.carried.Add(int64(len(data)))
	n, err := to.Write(data)
	l.carried.Add(int64(n - len(data)))
	return err
}
