package local

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"slices"
	"syscall"

	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// addresses returns the global unicast addresses of interfaces that are up: first those of the
// interface with the default route, IPv4 before IPv6. routed reports whether there is a default
// route.
func addresses() (ips []net.IP, routed bool, err error) {
	ifaces, err := net.Interfaces()
	if err != nil {
		return nil, false, err
	}
	// net.Interface.Addrs would read the addresses of all interfaces for each of them, and each pod
	// has one.
	rib, err := syscall.NetlinkRIB(syscall.RTM_GETADDR, syscall.AF_UNSPEC)
	if err != nil {
		return nil, false, fmt.Errorf("list the addresses of the interfaces: %w", err)
	}
	byInterface, err := parseAddresses(rib)
	if err != nil {
		return nil, false, fmt.Errorf("list the addresses of the interfaces: %w", err)
	}
	route, _ := os.ReadFile("/proc/net/route")
	preferred := machine.DefaultInterface(route)
	type ranked struct {
		ip   net.IP
		rank int
	}
	var all []ranked
	for _, i := range ifaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagLoopback != 0 {
			continue
		}
		for _, ip := range byInterface[i.Index] {
			if !ip.IsGlobalUnicast() {
				continue
			}
			r := ranked{ip: ip}
			if i.Name != preferred {
				r.rank += 2
			}
			if ip.To4() == nil {
				r.rank++
			}
			all = append(all, r)
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return a.rank - b.rank })
	ips = make([]net.IP, 0, len(all))
	for _, r := range all {
		ips = append(ips, r.ip)
	}
	return ips, preferred != "", nil
}

// parseAddresses returns the addresses of each interface by its index, from the answer to
// RTM_GETADDR. If the interface has a peer (IFA_ADDRESS), the address is its own (IFA_LOCAL).
func parseAddresses(rib []byte) (map[int][]net.IP, error) {
	messages, err := syscall.ParseNetlinkMessage(rib)
	if err != nil {
		return nil, err
	}
	found := map[int][]net.IP{}
	for i, m := range messages {
		if m.Header.Type != syscall.RTM_NEWADDR || len(m.Data) < syscall.SizeofIfAddrmsg {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&messages[i])
		if err != nil {
			return nil, err
		}
		var address, own net.IP
		for _, a := range attrs {
			if len(a.Value) != net.IPv4len && len(a.Value) != net.IPv6len {
				continue
			}
			switch a.Attr.Type {
			case syscall.IFA_ADDRESS:
				address = net.IP(a.Value)
			case syscall.IFA_LOCAL:
				own = net.IP(a.Value)
			}
		}
		if own == nil {
			own = address
		}
		if own != nil {
			index := int(binary.NativeEndian.Uint32(m.Data[4:8]))
			found[index] = append(found[index], own)
		}
	}
	return found, nil
}
