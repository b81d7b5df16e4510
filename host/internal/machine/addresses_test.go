package machine

import (
	"fmt"
	"testing"

	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestAddresses(t *testing.T) {
	const (
		ip = "1: lo    inet 127.0.0.1/8 scope host lo\\       valid_lft forever\n" +
			"2: eth1    inet 192.168.0.9/24 brd 192.168.0.255 scope global eth1\\  x\n" +
			"3: eth0    inet6 2001:db8::5/64 scope global \\  x\n3: eth0    inet6 fe80::1/64 scope link \\  x\n" +
			"3: eth0    inet 10.0.0.2/24 scope global eth0\\  x\n4: v@if9    inet 10.9.0.1/32 scope global v\\  x\n5: t    inet 10.0.0.2/24 x\n"
		route = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t0100000A\t0003\t0\t0\t50\t00000000\n"
		trie  = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\n     |-- 10.0.0.2\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\n"
		inet6 = "20010db8000000000000000000000005 02 40 00 80     eth0\nfe800000000000000000000000000001 02 40 20 80     eth0\n00000000000000000000000000000001 01 80 10 80       lo\n"
	)
	for name, c := range map[string]struct{ ip, route, inet6, trie, want string }{
		"ip":      {ip, route, "", "", "[10.0.0.2 2001:db8::5 192.168.0.9 10.9.0.1]"},
		"no ip":   {"", route, inet6, trie, "[10.0.0.2 2001:db8::5]"},
		"nothing": {"", "", "", "", "[]"},
	} {
		if got := fmt.Sprint(Addresses(c.ip, c.route, c.inet6, c.trie)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func FuzzAddresses(f *testing.F) {
	f.Add("2: eth1    inet 192.168.0.9/24 x\n", "eth0\t00000000\t0\t1\t0\t0\t1\t00000000\n", "00 1 2 3 4 e\n", "|-- 1.2.3.4\n/32 host LOCAL\n")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, ip, route, inet6, trie string) {
		for _, a := range append(Addresses(ip, route, inet6, trie), Addresses("", route, inet6, trie)...) {
			if !a.IsGlobalUnicast() {
				t.Errorf("%s is no address of a node", a)
			}
		}
	})
}
