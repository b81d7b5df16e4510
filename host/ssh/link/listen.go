package link

import (
	"net"
	"sync"
)

// backlog is how many connections wait for Accept; more are closed.
const backlog = 128

// listener takes connections from the machine as they come: one that nobody takes
// would stop all that is read on the SSH connection.
type listener struct {
	raw    net.Listener
	c      *connection
	conns  chan net.Conn
	closed chan struct{}
	ended  chan struct{} // serve has ended
	once   sync.Once
}

func newListener(c *connection, raw net.Listener) *listener {
	l := &listener{raw: raw, c: c, conns: make(chan net.Conn, backlog), closed: make(chan struct{}), ended: make(chan struct{})}
	go l.serve()
	return l
}

func (l *listener) serve() {
	for {
		raw, err := l.raw.Accept()
		if err != nil {
			break
		}
		conn := newConn(raw, l.c.readEnded, l.c.writeEnded)
		select {
		case l.conns <- conn:
		default:
			conn.Close()
		}
	}
	close(l.ended)
	l.drain()
}

// drain closes what nobody will accept any more.
func (l *listener) drain() {
	for {
		select {
		case conn := <-l.conns:
			conn.Close()
		default:
			return
		}
	}
}

func (l *listener) Accept() (net.Conn, error) {
	if closedNow(l.closed) {
		return nil, net.ErrClosed
	}
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-l.ended:
		if closedNow(l.closed) {
			return nil, net.ErrClosed
		}
		return nil, &DownError{Address: l.c.address, Cause: errCut}
	}
}

// Close stops listening; it waits for the machine's word, or for the end of the link.
func (l *listener) Close() error {
	err := error(net.ErrClosed)
	l.once.Do(func() {
		close(l.closed)
		err = l.c.closeListener(l.raw)
		<-l.ended
		l.drain()
	})
	return err
}

func (l *listener) Addr() net.Addr { return l.raw.Addr() }

// closeListener cancels a forward. A forward is over with its connection.
func (c *connection) closeListener(ln net.Listener) error {
	select {
	case c.globals <- struct{}{}:
		defer func() { <-c.globals }()
	case <-c.ended:
	}
	err := ln.Close()
	if c.isBroken() {
		return nil
	}
	return err
}
