package helper

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// soOriginalDst is SO_ORIGINAL_DST and IP6T_SO_ORIGINAL_DST.
const soOriginalDst = 80

// originalFunc returns the destination that a redirected connection had.
type originalFunc func(*net.TCPConn) (netip.AddrPort, error)

func originalDestination(c *net.TCPConn) (dst netip.AddrPort, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return dst, err
	}
	v4 := plain(c.LocalAddr()).Addr().Is4()
	failed := raw.Control(func(fd uintptr) {
		if v4 {
			// The kernel writes a sockaddr_in, for which unix has no function; that of an ipv6_mreq is large enough.
			var m *unix.IPv6Mreq
			if m, err = unix.GetsockoptIPv6Mreq(int(fd), unix.IPPROTO_IP, soOriginalDst); err == nil {
				s := (*unix.RawSockaddrInet4)(unsafe.Pointer(m))
				dst = netip.AddrPortFrom(netip.AddrFrom4(s.Addr), networkPort(s.Port))
			}
			return
		}
		var m *unix.IPv6MTUInfo // begins with a sockaddr_in6
		if m, err = unix.GetsockoptIPv6MTUInfo(int(fd), unix.IPPROTO_IPV6, soOriginalDst); err == nil {
			dst = netip.AddrPortFrom(netip.AddrFrom16(m.Addr.Addr), networkPort(m.Addr.Port))
		}
	})
	if err := errors.Join(failed, err); err != nil {
		return dst, fmt.Errorf("read the original destination of a connection from %s: %w", c.RemoteAddr(), err)
	}
	return dst, nil
}

// networkPort is the port of a sockaddr, which has network byte order.
func networkPort(p uint16) uint16 {
	b := (*[2]byte)(unsafe.Pointer(&p))
	return uint16(b[0])<<8 | uint16(b[1])
}

func isNotConnected(err error) bool { return errors.Is(err, unix.ENOTCONN) }

// listenUDP listens for datagrams at a port that the kernel chooses. The kernel says to which address each was
// sent, as an answer must come from there: the connection that it tracks has no other.
func listenUDP(ctx context.Context, at netip.Addr) (*net.UDPConn, error) {
	network := "udp6"
	if at.Is4() {
		network = "udp4"
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) {
			if at.Is4() {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
			} else {
				err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_RECVPKTINFO, 1)
			}
		}), err)
	}}
	c, err := config.ListenPacket(ctx, network, netip.AddrPortFrom(at, 0).String())
	if err != nil {
		return nil, err
	}
	return c.(*net.UDPConn), nil
}

const maxDatagram = 64 << 10 // bytes; UDP has no larger ones

var datagrams = sync.Pool{New: func() any { return new([maxDatagram]byte) }}

// datagram is one that arrived. Its payload belongs to a buffer, until release.
type datagram struct {
	from    netip.AddrPort
	to      netip.Addr // invalid if the kernel does not say
	payload []byte
	buffer  *[maxDatagram]byte
}

func (d datagram) release() { datagrams.Put(d.buffer) }

// receive waits for a datagram. Only one that has arrived takes a buffer: there may be a thousand sockets.
func receive(raw syscall.RawConn) (d datagram, err error) {
	var control [64]byte
	failed := raw.Read(func(fd uintptr) bool {
		d.buffer = datagrams.Get().(*[maxDatagram]byte)
		n, m, from, readErr := 0, 0, unix.Sockaddr(nil), error(unix.EINTR)
		for readErr == unix.EINTR {
			n, m, _, from, readErr = unix.Recvmsg(int(fd), d.buffer[:], control[:], unix.MSG_DONTWAIT)
		}
		if err = readErr; err != nil {
			d.release()
			return err != unix.EAGAIN
		}
		d.payload, d.from, d.to = d.buffer[:n], addressOf(from), sentTo(control[:m])
		return true
	})
	if failed != nil {
		return datagram{}, failed
	}
	return d, err
}

func addressOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port))
	}
	return netip.AddrPort{}
}

// sentTo reads the address to which a datagram was sent.
func sentTo(control []byte) netip.Addr {
	messages, err := unix.ParseSocketControlMessage(control)
	if err != nil {
		return netip.Addr{}
	}
	for _, m := range messages {
		is := func(level, kind int32, size int) bool {
			return m.Header.Level == level && m.Header.Type == kind && len(m.Data) >= size
		}
		if is(unix.IPPROTO_IP, unix.IP_PKTINFO, unix.SizeofInet4Pktinfo) {
			return netip.AddrFrom4([4]byte(m.Data[8:12])) // ipi_addr
		}
		if is(unix.IPPROTO_IPV6, unix.IPV6_PKTINFO, unix.SizeofInet6Pktinfo) {
			return netip.AddrFrom16([16]byte(m.Data[:16]))
		}
	}
	return netip.Addr{}
}

// sentFrom is the control message that makes a datagram come from an address.
func sentFrom(a netip.Addr) []byte {
	switch {
	case a.Is4():
		return unix.PktInfo4(&unix.Inet4Pktinfo{Spec_dst: a.As4()})
	case a.Is6():
		return unix.PktInfo6(&unix.Inet6Pktinfo{Addr: a.As16()})
	}
	return nil
}
