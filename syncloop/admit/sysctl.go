package admit

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	sysctl "k8s.io/component-helpers/node/util/sysctl"

	"github.com/bowline-k8s/bowline/pod"
)

// Sysctls are the kernel parameters that pods may set: exact names and name prefixes, each with the
// namespace that isolates it.
type Sysctls struct {
	names, prefixes map[string]sysctl.Namespace
}

// safeSysctls are isolated by their namespace from this kernel version on (empty: in every
// version), and harm no other pod.
var safeSysctls = map[string]string{
	"kernel.shm_rmid_forced":              "",
	"net.ipv4.ip_local_port_range":        "",
	"net.ipv4.tcp_syncookies":             "",
	"net.ipv4.ping_group_range":           "",
	"net.ipv4.ip_unprivileged_port_start": "",
	"net.ipv4.ip_local_reserved_ports":    "3.16",
	"net.ipv4.tcp_keepalive_time":         "4.5",
	"net.ipv4.tcp_fin_timeout":            "4.6",
	"net.ipv4.tcp_keepalive_intvl":        "4.5",
	"net.ipv4.tcp_keepalive_probes":       "4.5",
	"net.ipv4.tcp_rmem":                   "4.15",
	"net.ipv4.tcp_wmem":                   "4.15",
	"net.ipv4.tcp_slow_start_after_idle":  "4.15",
	"net.ipv4.tcp_notsent_lowat":          "4.6",
}

// NewSysctls allows the safe sysctls of this kernel (uname -r) and the unsafe ones that are listed,
// where a name may end in a star. A name of no known namespace is never allowed.
func NewSysctls(kernel string, unsafe []string) *Sysctls {
	s := &Sysctls{names: map[string]sysctl.Namespace{}, prefixes: map[string]sysctl.Namespace{}}
	running, err := version.ParseGeneric(kernel)
	for name, since := range safeSysctls {
		if since == "" || err == nil && running.AtLeast(version.MustParseGeneric(since)) {
			s.names[name], _, _ = sysctl.GetNamespace(name)
		}
	}
	for _, pattern := range unsafe {
		switch ns, name, prefix := sysctl.GetNamespace(pattern); {
		case ns == sysctl.UnknownNamespace:
		case prefix:
			s.prefixes[name] = ns
		default:
			s.names[name] = ns
		}
	}
	return s
}

func sysctls(p *v1.Pod, n Node) *Rejection {
	if n.Sysctls == nil || p.Spec.SecurityContext == nil {
		return nil
	}
	for _, asked := range p.Spec.SecurityContext.Sysctls {
		if why := n.Sysctls.refuses(asked.Name, p); why != "" {
			return &Rejection{ReasonSysctl, "forbidden sysctl: " + why}
		}
	}
	return nil
}

// refuses says why the pod may not set the sysctl; empty means that it may.
func (s *Sysctls) refuses(name string, p *v1.Pod) string {
	name = sysctl.NormalizeName(name)
	ns, known := s.names[name]
	for _, prefix := range sorted(s.prefixes) {
		if !known && strings.HasPrefix(name, prefix) {
			ns, known = s.prefixes[prefix], true
		}
	}
	if !known {
		return fmt.Sprintf("%q not allowlisted", name)
	}
	shared := map[sysctl.Namespace]bool{
		sysctl.IPCNamespace: p.Spec.HostIPC, sysctl.NetNamespace: p.Spec.HostNetwork,
		sysctl.UserNamespace: !pod.HasUserNamespace(p),
	}
	if shared[ns] {
		return fmt.Sprintf("%q not allowed with host %s enabled", name, ns)
	}
	return ""
}

func sorted(m map[string]sysctl.Namespace) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
