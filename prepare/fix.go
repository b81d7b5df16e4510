package prepare

import (
	"bytes"
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

// Fix is one fix, with everything that is needed to undo it.
type Fix struct {
	Name    string    `json:"name"` // one of the constants below
	Why     string    `json:"why"`
	Warning string    `json:"warning,omitempty"` // side effects
	Module  string    `json:"module,omitempty"`  // kernel module to load
	Edits   []Edit    `json:"edits,omitempty"`
	Kernel  []Setting `json:"kernel,omitempty"`  // set at once, after Edits
	Restart bool      `json:"restart,omitempty"` // of containerd, at the end
	// Bridge and Leavings are what pods create through this fix and leave behind: a link, and a
	// directory.
	Bridge   string `json:"bridge,omitempty"`
	Leavings string `json:"leavings,omitempty"`
}

// Names of fixes.
const (
	FixCRI     = "containerd's CRI plugin"
	FixNetwork = "a network for pods"
	FixKernel  = "settings of the kernel"
)

// Edit writes a file.
type Edit struct {
	Path string      `json:"path"`
	Old  *string     `json:"old"` // nil: the file did not exist
	New  string      `json:"new"`
	Mode fs.FileMode `json:"mode"`
	// Dirs are the directories that had to be created for the file, the deepest last.
	Dirs []string `json:"dirs,omitempty"`
}

// Setting is a kernel setting, by its name in sysctl(8).
type Setting struct {
	Name string `json:"name"`
	Old  string `json:"old"` // empty: it did not exist before its module was loaded
	New  string `json:"new"`
}

func (s Setting) path() string { return "/proc/sys/" + strings.ReplaceAll(s.Name, ".", "/") }

// Facts is the state of a machine that Decide needs in addition to what a check finds.
type Facts struct {
	Config      File // containerd's, with symbolic links resolved
	SysctlFile  File
	ModuleFile  File
	NetworkFile File
	Routes      []netip.Prefix
	// Subnet is the pod network that an earlier preparation chose, if any.
	Subnet netip.Prefix
	// Loadable: br_netfilter can be loaded.
	Loadable bool
}

// File is a file that may exist.
type File struct {
	Path string
	Data *string // nil: it does not exist
	Mode fs.FileMode
	Dirs []string // missing directories that would have to be created
}

func (f File) edit(text string) Edit {
	mode := f.Mode
	if f.Data == nil {
		mode = 0o644
	}
	return Edit{Path: f.Path, Old: f.Data, New: text, Mode: mode, Dirs: f.Dirs}
}

// Plan has the fixes, and notes on what must be fixed by hand.
type Plan struct {
	Fixes []Fix
	Notes []string
}

const (
	SysctlFile  = "/etc/sysctl.d/90-bowline-prepare.conf"
	ModuleFile  = "/etc/modules-load.d/bowline-prepare.conf"
	networkName = "bowline"
	bridgeName  = "bowline0"
	// where the host-local plugin keeps the allocated addresses
	addressDir = "/var/lib/cni/networks/" + networkName
)

// Node is what is known of the node that a machine shall become.
type Node struct {
	// Name selects the pod network; empty: it is not known, and no new network is made from it.
	Name string
	// Subnet is the pod network. If not valid, it is the one that an earlier preparation chose, or
	// else one derived from the name that overlaps no route.
	Subnet netip.Prefix
}

// Decide decides which findings are fixed, and how. It is pure.
func Decide(found hostcheck.Found, facts Facts, node Node) Plan {
	var p Plan
	if !found.Asked {
		p.Notes = append(p.Notes, "cannot prepare the host without root privileges: fix the failures of the check first")
		return p
	}
	p.kernel(found, facts)
	if !found.CRI {
		p.cri(found, facts)
		return p
	}
	p.network(found, facts, node)
	return p
}

func (p *Plan) cri(found hostcheck.Found, facts Facts) {
	fixed, disabled := hostcheck.EnableCRI(found.Config)
	if !disabled || facts.Config.Data == nil {
		p.Notes = append(p.Notes, "no runtime answers, although containerd's CRI plugin is not disabled: fix what the check reports about the runtime")
		return
	}
	p.Fixes = append(p.Fixes, Fix{
		Name: FixCRI, Why: "it is disabled, as in Docker's containerd package",
		Warning: "containerd restarts; containers keep running",
		Edits:   []Edit{facts.Config.edit(string(fixed))}, Restart: true,
	})
	p.Notes = append(p.Notes, "the pod network is checked once the CRI plugin answers")
}

// needed are the CNI plugins; containerd itself calls the last one.
var needed = []string{"bridge", "host-local", "loopback"}

func (p *Plan) network(found hostcheck.Found, facts Facts, node Node) {
	if found.NetworkReady || len(found.Networks) > 0 {
		return // ready, or configured by someone else
	}
	var missing []string
	for _, program := range needed {
		if !slices.Contains(found.Programs, program) {
			missing = append(missing, program)
		}
	}
	if len(missing) > 0 {
		note := fmt.Sprintf("pods have no network, and the CNI plugins (%s) are not in %s; on Debian or Ubuntu:\napt-get install containernetworking-plugins",
			strings.Join(missing, ", "), strings.Join(found.BinDirs, ", "))
		if len(found.BinDirs) > 0 && !slices.Contains(found.BinDirs, "/usr/lib/cni") {
			note += fmt.Sprintf("\nmkdir -p %[1]s && ln -s /usr/lib/cni/* %[1]s/", found.BinDirs[0])
		}
		p.Notes = append(p.Notes, note)
		return
	}
	subnet := node.Subnet
	if !subnet.IsValid() {
		subnet = facts.Subnet
	}
	if !subnet.IsValid() {
		// Not from the hostname: machines of one image share it, and so would their pods' addresses.
		if node.Name == "" {
			p.Notes = append(p.Notes, "pods have no network: set --node-name, from which a new one is derived, or --pod-cidr")
			return
		}
		if subnet = freeSubnet(node.Name, facts.Routes); !subnet.IsValid() {
			p.Notes = append(p.Notes, "pods have no network, and every candidate overlaps a route of the host: set --pod-cidr")
			return
		}
	}
	p.Fixes = append(p.Fixes, Fix{
		Name: FixNetwork, Why: fmt.Sprintf("%s configures none", found.ConfDir),
		Warning: fmt.Sprintf("pods get addresses of %s behind the address of this host; other nodes have no route to them", subnet),
		Edits:   []Edit{facts.NetworkFile.edit(conflist(subnet, slices.Contains(found.Programs, "portmap")))},
		Bridge:  bridgeName, Leavings: addressDir,
	})
}

// NetworkPath is the path of the network's configuration. It sorts after those that a network
// add-on of the cluster may write, so theirs take precedence.
func NetworkPath(confDir string) string { return path.Join(confDir, "90-bowline.conflist") }

// Subnets are chosen from 10.132.0.0/24 to 10.239.255.0/24: above the usual networks of Services
// and pods, and below flannel's 10.244.0.0/16.
const (
	firstSecond = 132
	seconds     = 108
)

// freeSubnet derives a subnet from the node name, and takes the next one that overlaps no route. So
// different nodes have different subnets, except for rare collisions of the hash.
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

// chosen is the pod network that a record contains; not valid if there is none.
func (r *Record) chosen() netip.Prefix {
	for _, m := range r.Fixes {
		if m.Name != FixNetwork || len(m.Edits) == 0 {
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

// conflist is the configuration of a bridge network, in a CNI version that all current plugins
// support.
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
		panic(err) // cannot happen: strings and flags
	}
	return out.String()
}

// The settings that a node requires; the check reports the others that a kubelet sets.
const (
	forwarding = "net.ipv4.ip_forward"
	bridged    = "net.bridge.bridge-nf-call-iptables"
)

func (p *Plan) kernel(found hostcheck.Found, facts Facts) {
	m := Fix{Name: FixKernel}
	var why, lines []string
	set := func(name, reason string) {
		m.Kernel = append(m.Kernel, Setting{name, found.Sysctls[name], "1"})
		lines = append(lines, name+"=1")
		why = append(why, reason)
	}
	if v, has := found.Sysctls[forwarding]; has && v != "1" {
		set(forwarding, "pods cannot reach each other")
	}
	switch v, has := found.Sysctls[bridged]; {
	case has && v != "1":
		set(bridged, "Services do not work for bridged traffic")
	case !has && facts.Loadable:
		m.Module = "br_netfilter"
		m.Edits = append(m.Edits, facts.ModuleFile.edit(appended(facts.ModuleFile.Data, m.Module)))
		set(bridged, "Services do not work for bridged traffic (br_netfilter is not loaded)")
	}
	if len(lines) == 0 {
		return
	}
	m.Why = strings.Join(why, "; ")
	m.Edits = append(m.Edits, facts.SysctlFile.edit(appended(facts.SysctlFile.Data, lines...)))
	p.Fixes = append(p.Fixes, m)
}

// appended adds lines to the end of a file, unless it has them already.
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

// parseRoutes parses /proc/net/route.
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
			continue // the header
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
