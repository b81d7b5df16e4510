package rules

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

const (
	elementsPerMessage = 256  // an attribute of netlink has at most 64 KiB
	dstNAT             = 0x20 // IPS_DST_NAT, a bit of a connection's status
	register           = 8    // NFT_REG32_00, the first register of 4 bytes
)

var networkOrder = binary.BigEndian

// version is what differs between IPv4 and IPv6.
type version struct {
	family      nftables.TableFamily
	address     nftables.SetDatatype
	dst, size   uint32 // offset and size of the destination in the header, bytes
	unspecified netip.Addr
}

var (
	v4 = version{nftables.TableFamilyIPv4, nftables.TypeIPAddr, 16, 4, netip.IPv4Unspecified()}
	v6 = version{nftables.TableFamilyIPv6, nftables.TypeIP6Addr, 24, 16, netip.IPv6Unspecified()}
)

func (v version) has(a netip.Addr) bool { return a.Is4() == v.unspecified.Is4() }

// family is the table of one IP family.
type family struct {
	version
	table                      *nftables.Table
	cluster, local, udp, ports *nftables.Set
	made                       bool
}

func newFamily(v version) *family {
	t := &nftables.Table{Name: Table, Family: v.family}
	set := func(name string, key nftables.SetDatatype) *nftables.Set {
		return &nftables.Set{Table: t, Name: name, KeyType: key, KeyByteOrder: binaryutil.BigEndian}
	}
	f := &family{
		version: v, table: t,
		cluster: set("cluster", v.address), local: set("local", v.address),
		ports: set("ports", nftables.TypeInetService),
		udp:   set("udp", nftables.MustConcatSetType(v.address, nftables.TypeInetService)),
	}
	f.cluster.Interval, f.local.Interval = true, true
	f.udp.IsMap, f.udp.DataType = true, nftables.TypeInetService
	return f
}

// needed reports whether anything of the family is redirected.
func (f *family) needed(w Wanted) bool {
	return slices.ContainsFunc(w.Cluster, func(p netip.Prefix) bool { return f.has(p.Addr()) })
}

func (f *family) tcp(w Wanted) uint16 {
	if f.family == v4.family {
		return w.TCP4
	}
	return w.TCP6
}

// write adds the messages that make the table redirect what is wanted. The port of a TCP listener is part of
// the rules, and does not change; the rest is in the sets.
func (f *family) write(c *nftables.Conn, w Wanted) error {
	sets := []struct {
		set      *nftables.Set
		elements []nftables.SetElement
	}{
		{f.cluster, f.intervals(w.Cluster)}, {f.local, f.intervals(w.Local)},
		{f.udp, f.destinations(w)}, {f.ports, f.listeners(w)},
	}
	for _, s := range sets {
		if f.made {
			c.FlushSet(s.set)
		} else if err := c.AddSet(s.set, nil); err != nil {
			return fmt.Errorf("make the set %s: %w", s.set.Name, err)
		}
		for some := range slices.Chunk(s.elements, elementsPerMessage) {
			if err := c.SetAddElements(s.set, some); err != nil {
				return fmt.Errorf("fill the set %s: %w", s.set.Name, err)
			}
		}
	}
	if !f.made {
		f.writeChains(c, f.tcp(w))
	}
	return nil
}

func (f *family) writeChains(c *nftables.Conn, tcp uint16) {
	chain := func(of nftables.Chain) *nftables.Chain {
		of.Table = f.table
		return c.AddChain(&of)
	}
	rule := func(chain *nftables.Chain, parts ...[]expr.Any) {
		c.AddRule(&nftables.Rule{Table: f.table, Chain: chain, Exprs: slices.Concat(parts...)})
	}
	before := nftables.ChainPriorityRef(*nftables.ChainPriorityNATDest - 10)
	for name, hook := range map[string]*nftables.ChainHook{
		"prerouting": nftables.ChainHookPrerouting, "output": nftables.ChainHookOutput,
	} {
		nat := chain(nftables.Chain{Name: name, Type: nftables.ChainTypeNAT, Hooknum: hook, Priority: before})
		rule(nat, f.toCluster(), protocol(unix.IPPROTO_TCP), []expr.Any{
			&expr.Immediate{Register: register, Data: networkOrder.AppendUint16(nil, tcp)},
			&expr.Redir{RegisterProtoMin: register},
		})
		rule(nat, f.toCluster(), protocol(unix.IPPROTO_UDP), f.mapped())
	}
	input := chain(nftables.Chain{
		Name: "input", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookInput,
		Priority: nftables.ChainPriorityRef(*nftables.ChainPriorityFilter - 10),
	})
	one := []expr.Any{&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: networkOrder.AppendUint16(nil, tcp)}}
	any := []expr.Any{&expr.Lookup{SourceRegister: register, SetName: f.ports.Name, SetID: f.ports.ID}}
	for _, listeners := range [][]expr.Any{
		slices.Concat(protocol(unix.IPPROTO_TCP), destinationPort(register), one),
		slices.Concat(protocol(unix.IPPROTO_UDP), destinationPort(register), any),
	} {
		// Two rules, because the status of a packet without a connection matches nothing.
		rule(input, listeners, redirected(), verdict(expr.VerdictAccept))
		rule(input, listeners, verdict(expr.VerdictDrop))
	}
}

// toCluster matches what is redirected.
func (f *family) toCluster() []expr.Any {
	return []expr.Any{
		f.destination(),
		&expr.Lookup{SourceRegister: register, SetName: f.cluster.Name, SetID: f.cluster.ID},
		f.destination(),
		&expr.Lookup{SourceRegister: register, SetName: f.local.Name, SetID: f.local.ID, Invert: true},
	}
}

// mapped redirects to the port that the map has for the destination; it matches nothing else.
func (f *family) mapped() []expr.Any {
	return []expr.Any{
		f.destination(), destinationPort(register + f.size/4)[0],
		&expr.Lookup{
			SourceRegister: register, DestRegister: register, IsDestRegSet: true, SetName: f.udp.Name, SetID: f.udp.ID,
		},
		&expr.Redir{RegisterProtoMin: register},
	}
}

func (f *family) destination() expr.Any {
	return &expr.Payload{DestRegister: register, Base: expr.PayloadBaseNetworkHeader, Offset: f.dst, Len: f.size}
}

func protocol(number byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: register},
		&expr.Cmp{Op: expr.CmpOpEq, Register: register, Data: []byte{number}},
	}
}

func destinationPort(into uint32) []expr.Any {
	return []expr.Any{&expr.Payload{DestRegister: into, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}}
}

func redirected() []expr.Any {
	status := binary.NativeEndian.AppendUint32(nil, dstNAT)
	none := make([]byte, 4)
	return []expr.Any{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: register},
		&expr.Bitwise{SourceRegister: register, DestRegister: register, Len: 4, Mask: status, Xor: none},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: register, Data: none},
	}
}

func verdict(kind expr.VerdictKind) []expr.Any { return []expr.Any{&expr.Verdict{Kind: kind}} }

// intervals are the elements of a set: the first address of each range, and the first one after it.
func (f *family) intervals(prefixes []netip.Prefix) (elements []nftables.SetElement) {
	for _, r := range ranges(prefixes) {
		if !f.has(r.first) {
			continue
		}
		elements = append(elements, nftables.SetElement{Key: r.first.AsSlice()})
		if end := r.last.Next(); end.IsValid() { // not after the last address of all
			elements = append(elements, nftables.SetElement{Key: end.AsSlice(), IntervalEnd: true})
		}
	}
	return elements
}

// destinations are the elements of the map. A port has 4 bytes in a key, of which the last two are empty.
func (f *family) destinations(w Wanted) (elements []nftables.SetElement) {
	for dst, port := range w.UDP {
		if f.has(dst.Addr()) {
			key := append(networkOrder.AppendUint16(dst.Addr().AsSlice(), dst.Port()), 0, 0)
			elements = append(elements, nftables.SetElement{Key: key, Val: networkOrder.AppendUint16(nil, port)})
		}
	}
	return elements
}

func (f *family) listeners(w Wanted) (elements []nftables.SetElement) {
	seen := map[uint16]bool{}
	for dst, port := range w.UDP {
		if f.has(dst.Addr()) && !seen[port] {
			seen[port] = true
			elements = append(elements, nftables.SetElement{Key: networkOrder.AppendUint16(nil, port)})
		}
	}
	return elements
}

// netfilterHeader is struct nfgenmsg.
func netfilterHeader(family byte, resource uint16) []byte {
	return networkOrder.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}
