package link

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"

	"golang.org/x/crypto/ssh"
)

// backlog is the most connections that wait for Accept; more are closed.
const backlog = 128

// forwards are the listeners of a connection, by the name that the host uses. Those of
// x/crypto/ssh do not suffice: if a channel cannot be accepted, the channels behind it are
// stuck, and with them the connection, even after Close.
type forwards struct {
	once sync.Once
	mu   sync.Mutex
	by   map[string]*listener
}

// listener is a reverse forward: RFC 4254 section 7.1, OpenSSH's PROTOCOL section 2.4.
type listener struct {
	c       *connection
	network string
	host    string // tcp
	port    uint32 // tcp; 0 until the host has chosen one
	path    string // unix
	conns   chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

// listen asks the host to listen on an address that checkAddress has accepted.
func (c *connection) listen(ctx context.Context, network, address string) (net.Listener, error) {
	l := &listener{c: c, network: network, path: address, conns: make(chan net.Conn, backlog), closed: make(chan struct{})}
	if network == "tcp" {
		host, text, _ := net.SplitHostPort(address)
		port, _ := strconv.ParseUint(text, 10, 16)
		l.host, l.port = host, uint32(port)
	}
	c.forwards.once.Do(func() {
		go c.takeForwards("tcp", c.client.HandleChannelOpen("forwarded-tcpip"))
		go c.takeForwards("unix", c.client.HandleChannelOpen("forwarded-streamlocal@openssh.com"))
	})
	return request(ctx, c, func() (net.Listener, error) { return l, l.begin() }, func(ln net.Listener) { ln.Close() })
}

// begin sends the request. Connections may arrive before its answer, but not on a port that the
// host has yet to choose.
func (l *listener) begin() error {
	choose := l.network == "tcp" && l.port == 0
	if !choose {
		l.c.forwards.set(l.name(), l)
	}
	ok, reply, err := l.request("")
	if err == nil && !ok {
		err = &answerError{text: "refused: the file exists already, its directory does not, or sshd_config has no AllowStreamLocalForwarding yes"}
		if l.network == "tcp" {
			err = &answerError{text: "refused: the port is taken, the address is not the host's, or sshd forbids it (AllowTcpForwarding and PermitListen in sshd_config, permitlisten in authorized_keys)"}
		}
	}
	if err == nil && choose {
		var chosen struct{ Port uint32 }
		if err = ssh.Unmarshal(reply, &chosen); err == nil {
			l.port = chosen.Port
			l.c.forwards.set(l.name(), l)
		}
	}
	if err != nil {
		l.c.forwards.set(l.name(), nil)
	}
	return err
}

// request sends the request that begins the forward or, with "cancel-", ends it.
func (l *listener) request(prefix string) (bool, []byte, error) {
	if l.network == "unix" {
		return l.c.client.SendRequest(prefix+"streamlocal-forward@openssh.com", true, ssh.Marshal(struct{ Path string }{l.path}))
	}
	return l.c.client.SendRequest(prefix+"tcpip-forward", true, ssh.Marshal(struct {
		Addr string
		Port uint32
	}{l.host, l.port}))
}

// name is the key by which the host names the listener of a connection.
func (l *listener) name() string {
	if l.network == "unix" {
		return l.path
	}
	return tcpName(l.host, l.port)
}

func tcpName(host string, port uint32) string {
	return net.JoinHostPort(host, strconv.FormatUint(uint64(port), 10))
}

// set assigns the connections to name to a listener; nil removes it.
func (f *forwards) set(name string, l *listener) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.by == nil {
		f.by = map[string]*listener{}
	}
	if l == nil {
		delete(f.by, name)
	} else {
		f.by[name] = l
	}
}

func (f *forwards) get(name string) *listener {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.by[name]
}

// takeForwards accepts or rejects connections as they arrive, until the end of c: an unhandled
// one would block all reading from the SSH connection.
func (c *connection) takeForwards(network string, in <-chan ssh.NewChannel) {
	defer c.budget.Recover("the connections that the host forwards")
	for open := range in {
		var tcp struct {
			Addr       string
			Port       uint32
			OriginAddr string
			OriginPort uint32
		}
		var unix struct{ Path, Reserved string }
		name, remote := "", net.Addr(&net.UnixAddr{Name: "@", Net: "unix"})
		if network == "unix" && ssh.Unmarshal(open.ExtraData(), &unix) == nil {
			name = unix.Path
		} else if network == "tcp" && ssh.Unmarshal(open.ExtraData(), &tcp) == nil {
			name, remote = tcpName(tcp.Addr, tcp.Port), tcpAddr(tcp.OriginAddr, tcp.OriginPort)
		}
		l := c.forwards.get(name)
		if l == nil || l.network != network {
			open.Reject(ssh.Prohibited, "nothing listens there")
			continue
		}
		if !c.channels.take(&c.channels.forwarded, maxForwarded) {
			open.Reject(ssh.ResourceShortage, "too many connections")
			continue
		}
		raw, requests, err := open.Accept()
		if err != nil {
			c.channels.give(&c.channels.forwarded)
			continue // the connection is over, but the channels behind this one must be drained
		}
		channel := c.track(raw, &c.channels.forwarded, func() { ssh.DiscardRequests(requests) })
		l.offer(newConn(c.channelConn(channel, l.Addr(), remote), c.readEnded, c.writeEnded))
	}
}

// channelConn gives a channel its addresses.
type channelConn struct {
	ssh.Channel
	local, remote net.Addr
}

// channelConn makes a connection from a channel, which has no standard error.
func (c *connection) channelConn(ch *channel, local, remote net.Addr) *channelConn {
	c.budget.Go("a connection's channel", func() { c.silence(ch.stderr) })
	return &channelConn{ch, local, remote}
}

func (c *channelConn) LocalAddr() net.Addr  { return c.local }
func (c *channelConn) RemoteAddr() net.Addr { return c.remote }

func (l *listener) offer(conn net.Conn) {
	select {
	case l.conns <- conn:
	default:
		conn.Close()
	}
	if closedNow(l.closed) {
		l.drain()
	}
}

// drain closes the connections that will not be accepted any more.
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
	case <-l.c.ended:
		return nil, &DownError{Address: l.c.address, Cause: errCut}
	}
}

// Close stops listening; it waits for the answer of the host, or for the end of the link.
func (l *listener) Close() error {
	err := error(net.ErrClosed)
	l.once.Do(func() {
		close(l.closed)
		l.c.forwards.set(l.name(), nil)
		l.drain()
		err = l.end()
	})
	return err
}

// end cancels the forward, which would otherwise end with its connection.
func (l *listener) end() error {
	select {
	case l.c.globals <- struct{}{}:
		defer func() { <-l.c.globals }()
	case <-l.c.ended:
		return nil
	}
	ok, _, err := l.request("cancel-")
	switch {
	case l.c.isBroken() || err == io.EOF:
		return nil
	case err == nil && !ok:
		return fmt.Errorf("close the listener on %s at %s: sshd has no such listener", l.name(), l.c.address)
	}
	return err
}

// Addr is the address on the host; for a host name the IP is zero.
func (l *listener) Addr() net.Addr {
	if l.network == "unix" {
		return &net.UnixAddr{Name: l.path, Net: "unix"}
	}
	return tcpAddr(l.host, l.port)
}

func tcpAddr(host string, port uint32) *net.TCPAddr {
	ip := net.IPv4zero
	if parsed, err := netip.ParseAddr(host); err == nil {
		ip = parsed.AsSlice()
	}
	return &net.TCPAddr{IP: ip, Port: int(port)}
}
