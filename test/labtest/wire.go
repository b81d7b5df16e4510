package labtest

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Wire carries TCP connections from a port of loopback to an address, and fails as
// links do, when it is told to.
type Wire struct {
	to       string
	listener net.Listener
	delay    atomic.Int64 // of every read, nanoseconds
	swallow  atomic.Bool

	mu    sync.Mutex
	cut   bool
	pairs map[*pair]bool
	all   sync.WaitGroup
}

type pair struct{ near, far net.Conn }

// NewWire begins to carry; Close ends it.
func NewWire(to string) (*Wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &Wire{to: to, listener: l, pairs: map[*pair]bool{}}
	w.all.Go(w.accept)
	return w, nil
}

// Address to dial.
func (w *Wire) Address() string { return w.listener.Addr().String() }

// Cut closes every connection, and each new one at once, until Mend.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for p := range w.pairs {
		p.close()
	}
}

// Swallow takes what is sent and passes nothing on, in either direction and on old
// connections as on new ones, until Mend. Nothing is closed.
func (w *Wire) Swallow() { w.swallow.Store(true) }

// Delay holds back everything that is sent, by d in each direction.
func (w *Wire) Delay(d time.Duration) { w.delay.Store(int64(d)) }

// Mend carries again. What was swallowed is lost, so connections of that time are
// closed: no link can lose the middle of a stream and go on.
func (w *Wire) Mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.swallow.Load() {
		for p := range w.pairs {
			p.close()
		}
	}
	w.cut = false
	w.swallow.Store(false)
	w.delay.Store(0)
}

// Close ends everything.
func (w *Wire) Close() {
	w.listener.Close()
	w.Cut()
	w.all.Wait()
}

func (p *pair) close() {
	p.near.Close()
	p.far.Close()
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
	defer far.Close()
	p := &pair{near, far}
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
	both.Go(func() { w.pass(far, near); p.close() })
	both.Go(func() { w.pass(near, far); p.close() })
	both.Wait()
}

func (w *Wire) pass(to io.Writer, from io.Reader) {
	buf := make([]byte, 64<<10)
	for {
		n, err := from.Read(buf)
		if d := time.Duration(w.delay.Load()); d > 0 {
			<-time.After(d)
		}
		if n > 0 && !w.swallow.Load() {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
