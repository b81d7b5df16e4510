package rules

import (
	"errors"
	"net/netip"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Messages and attributes of ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
const (
	ctGet, ctDelete = 1, 2

	ctTupleOrig, ctID         = 1, 12
	ctTupleIP, ctTupleProto   = 1, 2
	ctIPv4Dst, ctIPv6Dst      = 2, 4
	ctProtoNumber, ctProtoDst = 1, 3
)

// forgetExchanges removes the entries of the kernel's table of connections for datagrams to destinations.
func forgetExchanges(destinations map[netip.AddrPort]bool) error {
	socket, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return err
	}
	defer socket.Close()
	if err := socket.SetDeadline(time.Now().Add(kernelTimeout)); err != nil {
		return err
	}
	all, err := socket.Execute(conntrackMessage(ctGet, netlink.Dump, unix.AF_UNSPEC, nil))
	if err != nil {
		return err
	}
	var failed error
	for _, m := range all {
		found, attributes := parseExchange(m.Data)
		if !destinations[found] {
			continue
		}
		_, err := socket.Execute(conntrackMessage(ctDelete, netlink.Acknowledge, m.Data[0], attributes))
		if !errors.Is(err, unix.ENOENT) { // it has ended by itself
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

func conntrackMessage(kind uint16, flags netlink.HeaderFlags, family byte, attributes []byte) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{
			Type: netlink.HeaderType(unix.NFNL_SUBSYS_CTNETLINK<<8 | kind), Flags: netlink.Request | flags,
		},
		Data: append(netfilterHeader(family, 0), attributes...),
	}
}

// parseExchange returns the destination of an exchange of datagrams, as its client sees it, and the attributes
// that identify its entry. For anything else the destination is the zero value.
func parseExchange(data []byte) (dst netip.AddrPort, identity []byte) {
	const header = 4 // bytes of struct nfgenmsg
	if len(data) < header {
		return dst, nil
	}
	d, err := netlink.NewAttributeDecoder(data[header:])
	if err != nil {
		return dst, nil
	}
	e := netlink.NewAttributeEncoder()
	for d.Next() {
		switch d.Type() {
		case ctTupleOrig:
			e.Bytes(netlink.Nested|ctTupleOrig, d.Bytes())
			d.Nested(func(d *netlink.AttributeDecoder) error {
				dst = parseTuple(d)
				return nil
			})
		case ctID:
			e.Bytes(ctID, d.Bytes())
		}
	}
	identity, err = e.Encode()
	if d.Err() != nil || err != nil {
		return netip.AddrPort{}, nil
	}
	return dst, identity
}

func parseTuple(d *netlink.AttributeDecoder) netip.AddrPort {
	var (
		address netip.Addr
		number  uint8
		port    uint16
	)
	for d.Next() {
		switch d.Type() {
		case ctTupleIP:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				for d.Next() {
					if t := d.Type(); t == ctIPv4Dst || t == ctIPv6Dst {
						address, _ = netip.AddrFromSlice(d.Bytes())
					}
				}
				return nil
			})
		case ctTupleProto:
			d.Nested(func(d *netlink.AttributeDecoder) error {
				d.ByteOrder = networkOrder
				for d.Next() {
					switch d.Type() {
					case ctProtoNumber:
						number = d.Uint8()
					case ctProtoDst:
						port = d.Uint16()
					}
				}
				return nil
			})
		}
	}
	if number != unix.IPPROTO_UDP || !address.IsValid() {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(address, port)
}
