package hostile

import (
	"io"
	"net"
	"sync"
)

// gate forwards connections to a target that can be replaced.
type gate struct {
	net.Listener
	all sync.WaitGroup

	mu    sync.Mutex
	dial  func() (net.Conn, error)
	conns map[net.Conn]bool
}

func newGate(l net.Listener, dial func() (net.Conn, error)) *gate {
	g := &gate{Listener: l, dial: dial, conns: map[net.Conn]bool{}}
	g.all.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			g.all.Go(func() { g.pass(c) })
		}
	})
	return g
}

// turn replaces the target and closes the connections to the previous one.
func (g *gate) turn(dial func() (net.Conn, error)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.dial = dial
	for c := range g.conns {
		c.Close()
	}
}

func (g *gate) close() {
	g.Close()
	g.turn(func() (net.Conn, error) { return nil, net.ErrClosed })
	g.all.Wait()
}

func (g *gate) pass(c net.Conn) {
	defer c.Close()
	g.mu.Lock()
	dial := g.dial
	g.mu.Unlock()
	to, err := dial()
	if err != nil {
		return
	}
	defer to.Close()
	g.mu.Lock()
	g.conns[c], g.conns[to] = true, true
	g.mu.Unlock()
	defer func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		delete(g.conns, c)
		delete(g.conns, to)
	}()
	var both sync.WaitGroup
	both.Go(func() { _, _ = io.Copy(to, c); to.Close(); c.Close() })
	both.Go(func() { _, _ = io.Copy(c, to); to.Close(); c.Close() })
	both.Wait()
}
