package local

import (
	"encoding/binary"
	"errors"
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
// RTM_GETADDR. If the interface has a peer (IFA_ADDRESS), the address is its own (IFA_LOCAL). The
// parser of package syscall panics if a message or an attribute ends before its padding.
func parseAddresses(rib []byte) (map[int][]net.IP, error) {
	found := map[int][]net.IP{}
	for len(rib) > 0 {
		if len(rib) < syscall.NLMSG_HDRLEN {
			return nil, errCutOff
		}
		length := int(binary.NativeEndian.Uint32(rib[0:4]))
		if length < syscall.NLMSG_HDRLEN || length > len(rib) {
			return nil, errCutOff
		}
		kind, body := binary.NativeEndian.Uint16(rib[4:6]), rib[syscall.NLMSG_HDRLEN:length]
		rib = rib[min(aligned(length), len(rib)):]
		if kind != syscall.RTM_NEWADDR || len(body) < syscall.SizeofIfAddrmsg {
			continue
		}
		ip, err := ownAddress(body[syscall.SizeofIfAddrmsg:])
		if err != nil {
			return nil, err
		}
		if ip != nil {
			index := int(binary.NativeEndian.Uint32(body[4:8]))
			found[index] = append(found[index], ip)
		}
	}
	return found, nil
}

var errCutOff = errors.New("the kernel's answer is cut off")

// ownAddress returns the address in the attributes of a message; nil if they have none.
func ownAddress(attrs []byte) (net.IP, error) {
	var address, own net.IP
	for len(attrs) >= syscall.SizeofRtAttr {
		length := int(binary.NativeEndian.Uint16(attrs[0:2]))
		if length < syscall.SizeofRtAttr || length > len(attrs) {
			return nil, errCutOff
		}
		kind, value := binary.NativeEndian.Uint16(attrs[2:4]), attrs[syscall.SizeofRtAttr:length]
		attrs = attrs[min(aligned(length), len(attrs)):]
		if len(value) != net.IPv4len && len(value) != net.IPv6len {
			continue
		}
		switch kind {
		case syscall.IFA_ADDRESS:
			address = value
		case syscall.IFA_LOCAL:
			own = value
		}
	}
	if own == nil {
		own = address
	}
	return own, nil
}

// aligned is the distance from the start of a message or an attribute to that of the next one.
func aligned(length int) int { return (length + 3) &^ 3 }
