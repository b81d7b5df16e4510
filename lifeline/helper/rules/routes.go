package rules

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// routeProtocol marks the routes of this package, as "ip route show proto 98" shows them. It is no number of
// /etc/iproute2/rt_protos.
const routeProtocol = 98

// routes lets processes in the host's network send to the cluster. The kernel redirects what they send only
// after it has found a route for it, and a host without a default route has none. Pods with a network of their
// own have a default route to the host.
type routes struct {
	socket   *netlink.Conn
	loopback uint32 // index of the interface
	added    map[netip.Prefix]bool
}

// openRoutes removes the routes that an earlier process has left behind.
func openRoutes() (*routes, error) {
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		return nil, explain("look up the loopback interface", err)
	}
	socket, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return nil, explain("open a netlink socket for routes", err)
	}
	r := &routes{socket: socket, loopback: uint32(lo.Index), added: map[netip.Prefix]bool{}}
	if err := r.clean(); err != nil {
		return nil, errors.Join(explain("remove the routes of an earlier process", err), socket.Close())
	}
	return r, nil
}

// apply adds a route for each prefix that has none, and removes those that are no longer needed.
func (r *routes) apply(prefixes []netip.Prefix) error {
	wanted := map[netip.Prefix]bool{}
	for _, p := range prefixes {
		p = p.Masked()
		wanted[p] = true
		if r.added[p] {
			continue
		}
		if there, err := r.there(p); err != nil {
			return fmt.Errorf("look up the route to %s: %w", p, err)
		} else if there {
			continue
		}
		err := r.change(unix.RTM_NEWROUTE, netlink.Create|netlink.Excl, p)
		if errors.Is(err, unix.EEXIST) {
			continue // the host's administrator refuses just this prefix
		}
		if err != nil {
			return fmt.Errorf("add the route to %s: %w", p, err)
		}
		r.added[p] = true
	}
	for p := range r.added {
		if wanted[p] {
			continue
		}
		if err := r.remove(p); err != nil {
			return err
		}
	}
	return nil
}

// noRoute are the kernel's answers if it has no route, or only one of the type unreachable, blackhole or prohibit.
var noRoute = []unix.Errno{unix.ENETUNREACH, unix.EHOSTUNREACH, unix.EINVAL, unix.EACCES}

// there reports whether the kernel has a route to the first host of a prefix.
func (r *routes) there(p netip.Prefix) (bool, error) {
	host := p.Addr()
	if next := host.Next(); p.Contains(next) {
		host = next
	}
	m := rtmsg{bits: byte(host.BitLen())}
	_, err := r.execute(unix.RTM_GETROUTE, 0, m, netip.PrefixFrom(host, host.BitLen()))
	if slices.ContainsFunc(noRoute, func(e unix.Errno) bool { return errors.Is(err, e) }) {
		return false, nil
	}
	return true, err
}

func (r *routes) remove(p netip.Prefix) error {
	delete(r.added, p)
	if err := r.change(unix.RTM_DELROUTE, 0, p); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("remove the route to %s: %w", p, err)
	}
	return nil
}

// clean removes all routes of this package.
func (r *routes) clean() error {
	all, err := r.execute(unix.RTM_GETROUTE, netlink.Dump, rtmsg{}, netip.Prefix{})
	if err != nil {
		return err
	}
	for _, m := range all {
		p, ours := parseRoute(m.Data)
		if !ours {
			continue
		}
		if err := r.remove(p); err != nil {
			return err
		}
	}
	return nil
}

func (r *routes) close() error {
	var failed error
	for p := range r.added {
		failed = errors.Join(failed, r.remove(p))
	}
	return errors.Join(failed, r.socket.Close())
}

// change adds or removes a route over the loopback interface.
func (r *routes) change(kind uint16, flags netlink.HeaderFlags, p netip.Prefix) error {
	m := rtmsg{
		bits: byte(p.Bits()), table: unix.RT_TABLE_MAIN, protocol: routeProtocol, kind: unix.RTN_UNICAST,
		scope: unix.RT_SCOPE_UNIVERSE, device: r.loopback,
	}
	if p.Addr().Is4() {
		m.scope = unix.RT_SCOPE_LINK // without a gateway
	}
	_, err := r.execute(kind, flags|netlink.Acknowledge, m, p)
	return err
}

// rtmsg is what this package sets of struct rtmsg, and the index of the interface, 0: none.
type rtmsg struct {
	bits, table, protocol, scope, kind byte
	device                             uint32
}

// rtmsgSize is the size of struct rtmsg.
const rtmsgSize = 12

func (r *routes) execute(
	kind uint16, flags netlink.HeaderFlags, m rtmsg, dst netip.Prefix,
) ([]netlink.Message, error) {
	family := byte(unix.AF_UNSPEC)
	e := netlink.NewAttributeEncoder()
	if dst.IsValid() {
		family = unix.AF_INET6
		if dst.Addr().Is4() {
			family = unix.AF_INET
		}
		e.Bytes(unix.RTA_DST, dst.Addr().AsSlice())
	}
	if m.device != 0 {
		e.Uint32(unix.RTA_OIF, m.device)
	}
	attributes, err := e.Encode()
	if err != nil {
		return nil, err
	}
	header := []byte{family, m.bits, 0, 0, m.table, m.protocol, m.scope, m.kind, 0, 0, 0, 0}
	if err := r.socket.SetDeadline(time.Now().Add(kernelTimeout)); err != nil {
		return nil, err
	}
	return r.socket.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(kind), Flags: netlink.Request | flags},
		Data:   append(header, attributes...),
	})
}

// parseRoute returns the destination of a route, and whether it is a route of this package.
func parseRoute(data []byte) (p netip.Prefix, ours bool) {
	if len(data) < rtmsgSize || data[4] != unix.RT_TABLE_MAIN || data[5] != routeProtocol {
		return p, false
	}
	attributes, err := netlink.UnmarshalAttributes(data[rtmsgSize:])
	if err != nil {
		return p, false
	}
	for _, a := range attributes {
		if a.Type == unix.RTA_DST {
			address, ok := netip.AddrFromSlice(a.Data)
			return netip.PrefixFrom(address, int(data[1])), ok
		}
	}
	return p, false
}
