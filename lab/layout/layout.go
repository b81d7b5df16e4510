// Package layout defines the names of a lab on this machine: its paths, links, addresses and
// cgroups. All derive from the lab's directory and index, so that several labs can coexist and each
// can be removed by name alone.
package layout

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
)

const (
	// MaxIndex is the largest index of a lab: sixteen labs share 10.64.0.0/11.
	MaxIndex = 15
	// MaxHosts is the largest number of hosts in one lab.
	MaxHosts = 200
	// Domain is the cluster's DNS domain.
	Domain = "cluster.local"
	// Registry is the registry's name in image references. The configuration of each host's runtime
	// holds its real address.
	Registry = "registry.lab"
	// RunDir holds the state of the machine rather than of one lab: locks, the claims of indexes,
	// and the mount points that labs had to make.
	RunDir = "/run/bowline-lab"
	// KubeletPort is where a node of the lab serves the kubelet's API.
	KubeletPort = 10250
)

// Runtime is the CRI runtime of a lab's hosts.
type Runtime string

// The runtimes.
const (
	Containerd Runtime = "containerd"
	CRIO       Runtime = "crio"
)

// Runtimes lists the names that ParseRuntime accepts.
var Runtimes = []Runtime{Containerd, CRIO}

// ParseRuntime returns the runtime of that name; the empty name is containerd.
func ParseRuntime(name string) (Runtime, error) {
	if name == "" {
		return Containerd, nil
	}
	if !slices.Contains(Runtimes, Runtime(name)) {
		return "", fmt.Errorf("no runtime %q: it is one of %v", name, Runtimes)
	}
	return Runtime(name), nil
}

// Socket is the path of the runtime's CRI socket inside a lab host: its default path.
func (r Runtime) Socket() string {
	if r == CRIO {
		return "/run/crio/crio.sock"
	}
	return "/run/containerd/containerd.sock"
}

// Lab is one lab on this machine.
type Lab struct {
	Dir   string // holds everything that the lab writes
	Index int    // 0 to MaxIndex; determines links, addresses and cgroups
}

// Name is also the lab's cgroup below each hierarchy's root.
func (l Lab) Name() string { return fmt.Sprintf("bowline-lab-%d", l.Index) }

// Bridge is the link that connects the hosts, in the machine's own network namespace.
func (l Lab) Bridge() string { return fmt.Sprintf("bowlab%d", l.Index) }

// BridgeMAC is the bridge's MAC address, which no other link has.
func (l Lab) BridgeMAC() string { return fmt.Sprintf("02:6c:61:62:00:%02x", l.Index) }

// Gateway is the machine's address on the bridge. The API server and the
// registry listen there.
func (l Lab) Gateway() netip.Addr { return netip.AddrFrom4([4]byte{172, 29, byte(l.Index), 1}) }

// OutsideAddresses are addresses of the bridge's network that the lab does not use. They are for processes
// that run beside its hosts. The hosts' serving certificates are valid for them.
func (l Lab) OutsideAddresses() []netip.Addr {
	var all []netip.Addr
	for last := byte(203); last < 253; last++ {
		all = append(all, netip.AddrFrom4([4]byte{172, 29, byte(l.Index), last}))
	}
	return all
}

// NodeNet is the network of the bridge.
func (l Lab) NodeNet() netip.Prefix { return netip.PrefixFrom(l.Gateway(), 24) }

// Loopback is an address of the loopback network that no other lab uses. The control plane's
// internal ports listen there.
func (l Lab) Loopback() netip.Addr { return netip.AddrFrom4([4]byte{127, 0, byte(100 + l.Index), 1}) }

// PodNet holds the pod networks of all hosts.
func (l Lab) PodNet() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + l.Index), 0, 0}), 16)
}

// ServiceNet holds the cluster IPs.
func (l Lab) ServiceNet() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(80 + l.Index), 0, 0}), 16)
}

// APIServiceIP is the cluster IP of the service "kubernetes".
func (l Lab) APIServiceIP() netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(80 + l.Index), 0, 1})
}

// DNSServiceIP is the cluster IP of the service "kube-dns".
func (l Lab) DNSServiceIP() netip.Addr {
	return netip.AddrFrom4([4]byte{10, byte(80 + l.Index), 0, 10})
}

// APIURL is the API server's URL, the same for the machine, hosts and pods.
func (l Lab) APIURL() string { return fmt.Sprintf("https://%s:6443", l.Gateway()) }

// RegistryAddress is where the registry listens, plain HTTP.
func (l Lab) RegistryAddress() string { return netip.AddrPortFrom(l.Gateway(), 5000).String() }

// EtcdURL is etcd's client endpoint.
func (l Lab) EtcdURL() string { return fmt.Sprintf("https://%s:2379", l.Loopback()) }

// EtcdPeerURL is etcd's peer endpoint. Only etcd itself uses it.
func (l Lab) EtcdPeerURL() string { return fmt.Sprintf("https://%s:2380", l.Loopback()) }

// Path joins names to the lab's directory.
func (l Lab) Path(names ...string) string {
	return filepath.Join(append([]string{l.Dir}, names...)...)
}

// PKI is the path of a file among the lab's keys and certificates.
func (l Lab) PKI(name string) string { return l.Path("pki", name) }

// Kubeconfig is the path of a kubeconfig by the name of its user.
func (l Lab) Kubeconfig(user string) string { return l.Path("kubeconfig", user+".kubeconfig") }

// Log is the path of a process's log.
func (l Lab) Log(process string) string { return l.Path("logs", process+".log") }

// ControlCgroup is the cgroup of the processes outside the hosts.
func (l Lab) ControlCgroup() string { return l.Name() + "/control" }

// Host is one host of a lab. Number counts from 1.
type Host struct {
	Lab    Lab
	Number int
}

// Hosts lists the first n hosts.
func (l Lab) Hosts(n int) []Host {
	hosts := make([]Host, n)
	for i := range hosts {
		hosts[i] = Host{Lab: l, Number: i + 1}
	}
	return hosts
}

// Name is the host's name and its node's name.
func (h Host) Name() string { return fmt.Sprintf("host%d", h.Number) }

// IP is the host's address on the bridge.
func (h Host) IP() netip.Addr {
	return netip.AddrFrom4([4]byte{172, 29, byte(h.Lab.Index), byte(2 + h.Number)})
}

// PodCIDR is the network of the host's pods.
func (h Host) PodCIDR() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(64 + h.Lab.Index), byte(h.Number), 0}), 24)
}

// Link is the end of the host's veth pair that stays on the bridge.
func (h Host) Link() string { return fmt.Sprintf("bowlab%dh%d", h.Lab.Index, h.Number) }

// PeerLink is the name of the other end until it is moved into the host and renamed to eth0.
func (h Host) PeerLink() string { return fmt.Sprintf("bowlab%dp%d", h.Lab.Index, h.Number) }

// Cgroup is the host's cgroup, the root of its cgroup namespace.
func (h Host) Cgroup() string { return h.Lab.Name() + "/" + h.Name() }

// SystemCgroup holds the host's daemons. The pods' cgroups are its siblings.
func (h Host) SystemCgroup() string { return h.Cgroup() + "/system" }

// Path joins names to the host's own directory.
func (h Host) Path(names ...string) string {
	return h.Lab.Path(append([]string{"hosts", h.Name()}, names...)...)
}

// Process is the name of a process of the host in pid files and logs.
func (h Host) Process(component string) string { return h.Name() + "-" + component }

// Bind is a directory of the host that hides the machine's.
type Bind struct {
	Target string // absolute, as a process in the host sees it
	Source string // below Path()
}

// Binds lists the directories that a host does not share with the machine. /run is not among them:
// each host has its own tmpfs there.
func (h Host) Binds() []Bind {
	var binds []Bind
	for _, target := range []string{
		"/etc",
		"/var/lib/cni",
		"/var/lib/containerd",
		"/var/lib/containers",
		"/var/lib/kubelet",
		"/var/log/containers",
		"/var/log/pods",
	} {
		binds = append(binds, Bind{Target: target, Source: h.Path("root", target)})
	}
	return binds
}
