package machine

import (
	"encoding/hex"
	"net"
	"slices"
	"strings"
)

// maxAddresses is the most addresses that are reported: more than any network plugin assigns.
const maxAddresses = 16 << 10

// Addresses are the global unicast addresses of a host: first those of the interface with the
// default route, IPv4 before IPv6. ipAddr is the output of "ip -o addr show up". If it is empty
// (no ip on the host), Addresses reads the /proc/net files route, if_inet6 and fib_trie, which
// do not tell the interface of an IPv4 address.
func Addresses(ipAddr, route, ifInet6, fibTrie string) []net.IP {
	preferred := DefaultInterface([]byte(route))
	type ranked struct {
		ip   net.IP
		rank int
	}
	var all []ranked
	seen := map[string]bool{} // as 16 bytes
	add := func(ip net.IP, iface string) {
		if ip == nil || !ip.IsGlobalUnicast() || seen[string(ip.To16())] || len(all) == maxAddresses {
			return
		}
		seen[string(ip.To16())] = true
		r := ranked{ip: ip}
		if iface != preferred {
			r.rank += 2
		}
		if ip.To4() == nil {
			r.rank++
		}
		all = append(all, r)
	}
	if strings.TrimSpace(ipAddr) != "" {
		for line := range strings.Lines(ipAddr) {
			// 2: eth0    inet 10.0.0.2/24 brd 10.0.0.255 scope global eth0
			f := strings.Fields(line)
			if len(f) < 4 || f[2] != "inet" && f[2] != "inet6" || f[1] == "lo" {
				continue
			}
			name, _, _ := strings.Cut(strings.TrimSuffix(f[1], ":"), "@")
			address, _, _ := strings.Cut(f[3], "/")
			add(net.ParseIP(address), name)
		}
	} else {
		last := ""
		for line := range strings.Lines(fibTrie) {
			// |-- 10.0.0.2
			//    /32 host LOCAL
			f := strings.Fields(line)
			switch {
			case len(f) == 2 && f[0] == "|--":
				last = f[1]
			case len(f) >= 3 && f[0] == "/32" && f[1] == "host" && f[2] == "LOCAL":
				add(net.ParseIP(last), preferred)
			}
		}
		for line := range strings.Lines(ifInet6) {
			// fe80000000000000000000000000000a 02 40 20 80 eth0
			f := strings.Fields(line)
			if len(f) == 6 && f[5] != "lo" {
				if ip, err := hex.DecodeString(f[0]); err == nil && len(ip) == net.IPv6len {
					add(ip, f[5])
				}
			}
		}
	}
	slices.SortStableFunc(all, func(a, b ranked) int { return a.rank - b.rank })
	ips := make([]net.IP, 0, len(all))
	for _, r := range all {
		ips = append(ips, r.ip)
	}
	return ips
}
