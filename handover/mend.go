package handover

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/bowline-k8s/bowline/hostcheck"
)

// Mend is one thing that is put right, and all that is needed to undo it.
type Mend struct {
	Name    string    `json:"name"` // one of the constants below
	Why     string    `json:"why"`
	Warning string    `json:"warning,omitempty"` // what else happens
	Module  string    `json:"module,omitempty"`  // of the kernel, that is loaded
	Edits   []Edit    `json:"edits,omitempty"`
	Kernel  []Setting `json:"kernel,omitempty"`  // set at once, after Edits
	Restart bool      `json:"restart,omitempty"` // of containerd, at the end
	// Bridge and Leavings are what pods make by way of the mend and leave: a link, and a directory.
	Bridge   string `json:"bridge,omitempty"`
	Leavings string `json:"leavings,omitempty"`
}

// Names of mends.
const (
	MendCRI     = "containerd's CRI plugin"
	MendNetwork = "a network for pods"
	MendKernel  = "settings of the kernel"
)

// Edit is a file that is written.
type Edit struct {
	Path string      `json:"path"`
	Old  *string     `json:"old"` // nil: there was none
	New  string      `json:"new"`
	Mode fs.FileMode `json:"mode"`
	// Dirs are the directories that had to be made for it, the deepest last.
	Dirs []string `json:"dirs,omitempty"`
}

// Setting of the kernel, by the name that sysctl(8) has for it.
type Setting struct {
	Name string `json:"name"`
	Old  string `json:"old"` // empty: it was not there before its module
	New  string `json:"new"`
}

func (s Setting) path() string { return "/proc/sys/" + strings.ReplaceAll(s.Name, ".", "/") }

// Site is what of a machine a mend depends on beside what a check finds.
type Site struct {
	Config      File // containerd's, with links followed
	SysctlFile  File
	ModuleFile  File
	NetworkFile File
	Routes      []netip.Prefix
	// Hostname in lower case is the name of a node that is given none.
	Hostname string
	// Subnet is the pods' network that an earlier preparation chose, if there was one.
	Subnet netip.Prefix
	// Loadable: br_netfilter is there to be loaded.
	Loadable bool
}

// File is one that may be there.
type File struct {
	Path string
	Data *string // nil: there is none
	Mode fs.FileMode
	Dirs []string // that are not there, and would have to be made
}

func (f File) edit(text string) Edit {
	mode := f.Mode
	if f.Data == nil {
		mode = 0o644
	}
	return Edit{Path: f.Path, Old: f.Data, New: text, Mode: mode, Dirs: f.Dirs}
}

// Plan is what can be mended, and what has to be mended by hand.
type Plan struct {
	Mends []Mend
	Notes []string
}

const (
	sysctlFile  = "/etc/sysctl.d/90-bowline-prepare.conf"
	moduleFile  = "/etc/modules-load.d/bowline-prepare.conf"
	networkName = "bowline"
	bridgeName  = "bowline0"
	// Where host-local keeps which addresses are taken.
	addressDir = "/var/lib/cni/networks/" + networkName
)

// Node is what is known of the node that a machine is to be.
type Node struct {
	// Name chooses the pods' network; empty: that of the machine, in lower case.
	Name string
	// Subnet is the pods' network; not valid: what an earlier preparation chose, or else
	// one by the name that overlaps no route.
	Subnet netip.Prefix
}

// Decide is PURE: what of that which was found is mended, and how.
func Decide(found hostcheck.Found, site Site, node Node) Plan {
	var p Plan
	if !found.Asked {
		p.Notes = append(p.Notes, "the machine cannot be asked as root: mend first what the check calls a failure")
		return p
	}
	p.kernel(found, site)
	if !found.CRI {
		p.cri(found, site)
		return p
	}
	p.network(found, site, node)
	return p
}

func (p *Plan) cri(found hostcheck.Found, site Site) {
	mended, disabled := hostcheck.EnableCRI(found.Config)
	if !disabled || site.Config.Data == nil {
		p.Notes = append(p.Notes, "no runtime answers, and not because containerd's CRI plugin is disabled: mend what the check says of the runtime")
		return
	}
	p.Mends = append(p.Mends, Mend{
		Name: MendCRI, Why: "it is disabled, as Docker's package sets containerd up",
		Warning: "containerd restarts; running containers go on",
		Edits:   []Edit{site.Config.edit(string(mended))}, Restart: true,
	})
	p.Notes = append(p.Notes, "whether pods have a network can be seen only when the CRI plugin answers, and is looked at then")
}

// needed are the network's programs; containerd itself calls the last one.
var needed = []string{"bridge", "host-local", "loopback"}

func (p *Plan) network(found hostcheck.Found, site Site, node Node) {
	if found.NetworkReady || len(found.Networks) > 0 {
		return // ready, or somebody else's to mend
	}
	var missing []string
	for _, program := range needed {
		if !slices.Contains(found.Programs, program) {
			missing = append(missing, program)
		}
	}
	if len(missing) > 0 {
		note := fmt.Sprintf("pods have no network, and its programs (%s) are not in %s; on Debian or Ubuntu:\napt-get install containernetworking-plugins",
			strings.Join(missing, ", "), strings.Join(found.BinDirs, ", "))
		if len(found.BinDirs) > 0 && !slices.Contains(found.BinDirs, "/usr/lib/cni") {
			note += fmt.Sprintf("\nmkdir -p %[1]s && ln -s /usr/lib/cni/* %[1]s/", found.BinDirs[0])
		}
		p.Notes = append(p.Notes, note)
		return
	}
	subnet := node.Subnet
	if !subnet.IsValid() {
		subnet = site.Subnet
	}
	if !subnet.IsValid() {
		name := cmp.Or(node.Name, strings.ToLower(site.Hostname))
		if subnet = freeSubnet(name, site.Routes); !subnet.IsValid() {
			p.Notes = append(p.Notes, "pods have no network, and every one that would be chosen overlaps a route of the machine: name one by --pod-cidr")
			return
		}
	}
	p.Mends = append(p.Mends, Mend{
		Name: MendNetwork, Why: fmt.Sprintf("%s configures none", found.ConfDir),
		Warning: fmt.Sprintf("pods get addresses of %s, behind this machine's own; other nodes know no way to them", subnet),
		Edits:   []Edit{site.NetworkFile.edit(conflist(subnet, slices.Contains(found.Programs, "portmap")))},
		Bridge:  bridgeName, Leavings: addressDir,
	})
}

// NetworkPath is where the network is configured; it comes last of those that an
// add-on of the cluster may put there.
func NetworkPath(confDir string) string { return path.Join(confDir, "90-bowline.conflist") }

// Networks that are chosen from are 10.132.0.0/24 to 10.239.255.0/24: above the usual
// networks of Services and of pods, and below flannel's 10.244.0.0/16.
const (
	firstSecond = 132
	seconds     = 108
)

// freeSubnet is the network of a node of that name, or the next that overlaps no
// route. Nodes, whose names differ, so have different networks, but for rare
// collisions of the hash.
func freeSubnet(name string, routes []netip.Prefix) netip.Prefix {
	h := fnv.New32a()
	h.Write([]byte(name))
	const networks = seconds * 256
	start := h.Sum32() % networks
	for i := range uint32(networks) {
		n := (start + i) % networks
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(firstSecond + n/256), byte(n % 256), 0}), 24)
		if !slices.ContainsFunc(routes, func(r netip.Prefix) bool { return r.Bits() > 0 && r.Overlaps(p) }) {
			return p
		}
	}
	return netip.Prefix{}
}

// chosen is the pods' network of a record; not valid if it made none.
func (r *Record) chosen() netip.Prefix {
	for _, m := range r.Mends {
		if m.Name != MendNetwork || len(m.Edits) == 0 {
			continue
		}
		var c struct {
			Plugins []struct {
				IPAM struct {
					Ranges [][]struct{ Subnet netip.Prefix }
				}
			}
		}
		if json.Unmarshal([]byte(m.Edits[0].New), &c) != nil {
			continue
		}
		for _, p := range c.Plugins {
			for _, ranges := range p.IPAM.Ranges {
				for _, at := range ranges {
					return at.Subnet
				}
			}
		}
	}
	return netip.Prefix{}
}

// conflist of a bridge, in a version that every plugin of this decade understands.
func conflist(subnet netip.Prefix, portmap bool) string {
	type object = map[string]any
	plugins := []object{{
		"type": "bridge", "bridge": bridgeName, "isGateway": true, "ipMasq": true, "hairpinMode": true,
		"ipam": object{
			"type":   "host-local",
			"ranges": [][]object{{{"subnet": subnet.String()}}},
			"routes": []object{{"dst": "0.0.0.0/0"}},
		},
	}}
	if portmap {
		plugins = append(plugins, object{"type": "portmap", "capabilities": object{"portMappings": true}})
	}
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(object{"cniVersion": "0.4.0", "name": networkName, "plugins": plugins}); err != nil {
		panic(err) // strings and flags: cannot be
	}
	return out.String()
}

// Settings that a node cannot do without; a kubelet's others are the check's to name.
const (
	forwarding = "net.ipv4.ip_forward"
	bridged    = "net.bridge.bridge-nf-call-iptables"
)

func (p *Plan) kernel(found hostcheck.Found, site Site) {
	m := Mend{Name: MendKernel}
	var why, lines []string
	set := func(name, reason string) {
		m.Kernel = append(m.Kernel, Setting{name, found.Sysctls[name], "1"})
		lines = append(lines, name+"=1")
		why = append(why, reason)
	}
	if v, has := found.Sysctls[forwarding]; has && v != "1" {
		set(forwarding, "no packet goes from one pod to another")
	}
	switch v, has := found.Sysctls[bridged]; {
	case has && v != "1":
		set(bridged, "Services do not see what goes over a bridge")
	case !has && site.Loadable:
		m.Module = "br_netfilter"
		m.Edits = append(m.Edits, site.ModuleFile.edit(appended(site.ModuleFile.Data, m.Module)))
		set(bridged, "Services do not see what goes over a bridge (br_netfilter is not loaded)")
	}
	if len(lines) == 0 {
		return
	}
	m.Why = strings.Join(why, "; ")
	m.Edits = append(m.Edits, site.SysctlFile.edit(appended(site.SysctlFile.Data, lines...)))
	p.Mends = append(p.Mends, m)
}

// appended is a file with lines at its end that it does not have yet.
func appended(old *string, lines ...string) string {
	text := ""
	if old != nil {
		text = *old
	}
	have := strings.Split(text, "\n")
	for _, line := range lines {
		if slices.Contains(have, line) {
			continue
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		text += line + "\n"
	}
	return text
}

// parseRoutes reads /proc/net/route.
func parseRoutes(data string) []netip.Prefix {
	var routes []netip.Prefix
	for line := range strings.Lines(data) {
		f := strings.Fields(line)
		if len(f) < 8 {
			continue
		}
		address, ok1 := littleEndian(f[1])
		mask, ok2 := littleEndian(f[7])
		if !ok1 || !ok2 {
			continue // the heading
		}
		bits := 0
		for _, b := range mask {
			for ; b&0x80 != 0; b <<= 1 {
				bits++
			}
		}
		routes = append(routes, netip.PrefixFrom(netip.AddrFrom4(address), bits))
	}
	return routes
}

func littleEndian(hex string) (out [4]byte, ok bool) {
	var n uint32
	if len(hex) != 8 {
		return out, false
	}
	if _, err := fmt.Sscanf(hex, "%08x", &n); err != nil {
		return out, false
	}
	return [4]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}, true
}
