package prepare

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/hostcheck"
)

func text(s string) *string { return &s }

// docker is a machine as Docker's package sets it up.
func docker() (hostcheck.Found, Facts) {
	config := "#   Copyright 2018-2022 Docker Inc.\n\ndisabled_plugins = [\"cri\"]\n\n#root = \"/var/lib/containerd\"\n"
	return hostcheck.Found{Asked: true, Config: []byte(config), Sysctls: map[string]string{forwarding: "1", bridged: "1"}},
		Facts{Config: File{Path: hostcheck.ContainerdConfig, Data: &config, Mode: 0o644},
			SysctlFile: File{Path: SysctlFile}, ModuleFile: File{Path: ModuleFile}}
}

// bare is a machine whose runtime answers, without a pod network.
func bare() (hostcheck.Found, Facts) {
	return hostcheck.Found{Asked: true, CRI: true, ConfDir: "/etc/cni/net.d", BinDirs: []string{"/opt/cni/bin"},
			Programs: []string{"bridge", "host-local", "loopback", "portmap"}, Sysctls: map[string]string{forwarding: "1", bridged: "1"}},
		Facts{NetworkFile: File{Path: NetworkPath("/etc/cni/net.d"), Dirs: []string{"/etc/cni", "/etc/cni/net.d"}},
			SysctlFile: File{Path: SysctlFile}, ModuleFile: File{Path: ModuleFile}}
}

// saidOf is the text of a plan.
func saidOf(p Plan) string {
	var b strings.Builder
	for _, m := range p.Fixes {
		b.WriteString(m.Text())
	}
	return b.String() + strings.Join(p.Notes, "\n")
}

func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		of     func() (hostcheck.Found, Facts)
		change func(*hostcheck.Found, *Facts)
		subnet string
		fixes  []string
		words  []string
		not    string
	}{
		"nothing known": {of: bare, change: func(f *hostcheck.Found, _ *Facts) { *f = hostcheck.Found{} }, words: []string{"root privileges"}},
		"Docker's containerd": {of: docker, fixes: []string{FixCRI},
			words: []string{"- disabled_plugins = [\"cri\"]\n", "+ disabled_plugins = []\n", "containers keep running", "systemctl restart containerd"}},
		"another plugin stays disabled": {of: docker, change: func(f *hostcheck.Found, s *Facts) {
			f.Config = []byte("disabled_plugins = [\n  \"cri\",\n  \"btrfs\",\n]\n")
			s.Config.Data = text(string(f.Config))
		}, fixes: []string{FixCRI}, words: []string{`+ disabled_plugins = ["btrfs"]`}},
		"no runtime, for another reason": {of: docker, change: func(f *hostcheck.Found, _ *Facts) { f.Config = []byte("version = 2\n") },
			words: []string{"no runtime answers"}},
		"no network": {of: bare, fixes: []string{FixNetwork}, words: []string{"new file /etc/cni/net.d/90-bowline.conflist", freeSubnet("n1", nil).String(), "portmap"}},
		"no network, a taken subnet": {of: bare, change: func(_ *hostcheck.Found, s *Facts) {
			s.Routes = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), freeSubnet("n1", nil)}
		}, fixes: []string{FixNetwork}, words: []string{freeSubnet("n1", []netip.Prefix{freeSubnet("n1", nil)}).String()}},
		"no network, no free subnet": {of: bare, change: func(_ *hostcheck.Found, s *Facts) {
			s.Routes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, words: []string{"--pod-cidr"}},
		"no network, a subnet by name": {of: bare, change: func(_ *hostcheck.Found, s *Facts) {
			s.Routes = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
		}, subnet: "10.244.3.0/24", fixes: []string{FixNetwork}, words: []string{"10.244.3.0/24"}},
		"no network, few programs": {of: bare, change: func(f *hostcheck.Found, _ *Facts) { f.Programs = []string{"loopback"} },
			words: []string{"bridge, host-local", "apt-get install containernetworking-plugins", "ln -s /usr/lib/cni/* /opt/cni/bin/"}},
		"Debian's containerd looks where Debian's programs are": {of: bare, change: func(f *hostcheck.Found, _ *Facts) {
			f.Programs, f.BinDirs = nil, []string{"/usr/lib/cni"}
		}, words: []string{"apt-get install"}, not: "ln -s"},
		"no portmap": {of: bare, change: func(f *hostcheck.Found, _ *Facts) { f.Programs = f.Programs[:3] }, fixes: []string{FixNetwork}, not: "portmap"},
		"a network that does not work is someone's": {of: bare, change: func(f *hostcheck.Found, _ *Facts) { f.Networks = []string{"10-calico.conflist"} }},
		"all well": {of: bare, change: func(f *hostcheck.Found, _ *Facts) { f.NetworkReady = true }},
		"no forwarding": {of: bare, change: func(f *hostcheck.Found, _ *Facts) { f.NetworkReady, f.Sysctls[forwarding] = true, "0" },
			fixes: []string{FixKernel}, words: []string{"new file " + SysctlFile, "+ net.ipv4.ip_forward=1", "(it is 0)"}, not: "bridge"},
		"a file of settings is added to": {of: bare, change: func(f *hostcheck.Found, s *Facts) {
			f.NetworkReady, f.Sysctls[forwarding] = true, "0"
			s.SysctlFile.Data = text("a=1")
		}, fixes: []string{FixKernel}, words: []string{"change " + SysctlFile, "  a=1\n", "+ net.ipv4.ip_forward=1"}},
		"a module that can be loaded": {of: bare, change: func(f *hostcheck.Found, s *Facts) {
			f.NetworkReady, s.Loadable = true, true
			delete(f.Sysctls, bridged)
		}, fixes: []string{FixKernel}, words: []string{"load the kernel's module br_netfilter", "new file " + ModuleFile, "it is not there"}},
		"a module that cannot": {of: bare, change: func(f *hostcheck.Found, _ *Facts) {
			f.NetworkReady = true
			delete(f.Sysctls, bridged)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			found, facts := c.of()
			if c.change != nil {
				c.change(&found, &facts)
			}
			var subnet netip.Prefix
			if c.subnet != "" {
				subnet = netip.MustParsePrefix(c.subnet)
			}
			plan := Decide(found, facts, Node{Name: "n1", Subnet: subnet})
			var names []string
			for _, m := range plan.Fixes {
				names = append(names, m.Name)
			}
			said := saidOf(plan)
			if !slices.Equal(names, c.fixes) {
				t.Errorf("fixes %q, not %q:\n%s", names, c.fixes, said)
			}
			for _, w := range c.words {
				if !strings.Contains(said, w) {
					t.Errorf("%q is not said:\n%s", w, said)
				}
			}
			if c.not != "" && strings.Contains(said, c.not) {
				t.Errorf("%q is said:\n%s", c.not, said)
			}
			if len(c.fixes)+len(c.words) == 0 && said != "" {
				t.Errorf("something is said:\n%s", said)
			}
		})
	}
}

// TestPodNetworksDiffer: prepared machines have different networks, because pods could not reach
// those of another machine with the same addresses.
func TestPodNetworksDiffer(t *testing.T) {
	seen := map[netip.Prefix]string{}
	for _, name := range []string{"box-1", "box-2", "box-3", "worker-a", "worker-b", "pi.example.com"} {
		p := freeSubnet(name, nil)
		if other := seen[p]; other != "" {
			t.Errorf("%s and %s both have %s", name, other, p)
		}
		seen[p] = name
		if p != freeSubnet(name, nil) || p.Bits() != 24 || p.Masked() != p || !netip.MustParsePrefix("10.128.0.0/9").Contains(p.Addr()) {
			t.Errorf("%s has %s", name, p)
		}
		if next := freeSubnet(name, []netip.Prefix{p}); !next.IsValid() || next.Overlaps(p) {
			t.Errorf("%s has %s where %s is taken", name, next, p)
		}
	}
}

// TestPodNetworkIsTheNodes: machines of one image share a hostname, but are nodes with different
// names. An earlier preparation keeps its network.
func TestPodNetworkIsTheNodes(t *testing.T) {
	found := hostcheck.Found{Asked: true, CRI: true, ConfDir: "/etc/cni/net.d", BinDirs: []string{"/opt/cni/bin"}, Programs: needed}
	given, before := netip.MustParsePrefix("10.85.3.0/24"), netip.MustParsePrefix("10.140.7.0/24")
	record := &Record{Fixes: []Fix{{Name: FixKernel}, {Name: FixNetwork, Edits: []Edit{{New: conflist(before, true)}}}}}
	for name, c := range map[string]struct {
		facts Facts
		node  Node
		want  netip.Prefix
	}{
		"by the node's name":           {Facts{}, Node{Name: "pi-1"}, freeSubnet("pi-1", nil)},
		"what was chosen, no name":     {Facts{Subnet: before}, Node{}, before},
		"a pod CIDR, no name":          {Facts{}, Node{Subnet: given}, given},
		"what the cluster gave":        {Facts{Subnet: before}, Node{Name: "pi-1", Subnet: given}, given},
		"what was chosen before":       {Facts{Subnet: record.chosen()}, Node{Name: "pi-1"}, before},
		"nothing was chosen before it": {Facts{Subnet: (&Record{}).chosen()}, Node{Name: "pi-2"}, freeSubnet("pi-2", nil)},
	} {
		plan := Decide(found, c.facts, c.node)
		if len(plan.Fixes) != 1 || !strings.Contains(plan.Fixes[0].Text(), c.want.String()) {
			t.Errorf("%s: not %s: %+v", name, c.want, plan)
		}
	}
	// A hostname would give all of them one network.
	if plan := Decide(found, Facts{}, Node{}); len(plan.Fixes) != 0 || len(plan.Notes) != 1 ||
		plan.Notes[0] != "pods have no network: set --node-name, from which a new one is derived, or --pod-cidr" {
		t.Errorf("without a name and a pod CIDR: %+v", plan)
	}
}

func TestParseRoutes(t *testing.T) {
	got := parseRoutes("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
		"eth0\t00000000\t01001DAC\t0003\t0\t0\t0\t00000000\t0\t0\t0\n" +
		"eth0\t00001DAC\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n")
	want := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("172.29.0.0/24")}
	if !slices.Equal(got, want) {
		t.Errorf("got %v", got)
	}
}

func TestDiff(t *testing.T) {
	for _, c := range []struct {
		old  *string
		text string
		want string
	}{
		{nil, "a\nb\n", "+ a|+ b"},
		{text("a\n"), "a\n", ""},
		{text("1\n2\n3\n4\n5\n6\n"), "1\n2\n3\nx\n5\n6\n", "  2|  3|- 4|+ x|  5|  6"},
		{text("a\n"), "a\nb\n", "  a|+ b"},
		{text("a\na\n"), "a\n", "  a|- a"},
	} {
		if got := strings.Join(diff(c.old, c.text), "|"); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
}
