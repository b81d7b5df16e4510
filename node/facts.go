package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// specMachine returns the host's properties from which CRI specs are built.
func (n *Node) specMachine(s *snapshot, hostIPs []string) spec.Machine {
	f := &s.facts
	m := spec.Machine{
		RootDir: n.cfg.RootDirectory, PodLogsDir: n.cfg.PodLogsDirectory,
		CgroupDriver: cmp.Or(n.cfg.CgroupDriver, s.driver), CgroupVersion: f.CgroupVersion,
		Owner: n.stamp, Hostname: f.Hostname, HostIPs: hostIPs, HostResolv: s.resolv,
		MemoryBytes: f.MemoryBytes, CPUs: f.CPUs,
		// False without CAP_SYS_RESOURCE: a negative score would make every container fail.
		CanLowerOOMScore: f.CanLowerOOMScore,
		ClusterDomain:    n.cfg.ClusterDomain,
		CPUCFSQuota:      *n.cfg.CPUCFSQuota, CFSPeriodUS: n.cfg.CPUCFSQuotaPeriod.Microseconds(),
		SingleProcessOOMKill: *n.cfg.SingleProcessOOMKill, SeccompDefault: *n.cfg.SeccompDefault,
		SwapControl: f.SwapControl, SELinux: f.SELinux, ThermalThrottle: f.ThermalThrottle,
	}
	m.HugePageSizes = slices.Sorted(maps.Keys(f.HugePages))
	if n.cfg.CgroupRoot != "/" { // spec writes "/" as ""
		m.CgroupRoot = n.cfg.CgroupRoot
	}
	if *n.cfg.PodPidsLimit > 0 {
		m.PodPidsLimit = *n.cfg.PodPidsLimit
	}
	return m
}

// hostIPs returns the host's addresses for its pods: the configured nodeIP, or the address by which
// others reach the host. The node keeps its address as long as the host has it. It also keeps an
// address that went away with the default route: what is left then are the host's internal
// networks, such as that of its pods.
func hostIPs(cfg *config.Host, f *host.Facts, last *snapshot) ([]string, error) {
	var ips []string
	for _, ip := range strings.Split(cfg.NodeIP, ",") {
		if ip = strings.TrimSpace(ip); ip != "" {
			ips = append(ips, ip)
		}
	}
	if len(ips) > 0 {
		return ips, nil
	}
	if last != nil {
		still := slices.ContainsFunc(f.Addresses, func(ip net.IP) bool { return ip.String() == last.spec.HostIPs[0] })
		if still || len(f.Addresses) == 0 || last.routed && !f.Routed {
			return last.spec.HostIPs, nil
		}
	}
	if len(f.Addresses) == 0 {
		return nil, hint.Add(errors.New("the host has no reachable address"), "set nodeIP")
	}
	return []string{f.Addresses[0].String()}, nil
}

// resolvConf returns a reader of the host's resolv.conf; nil if the configuration wants none.
func (n *Node) resolvConf() func(context.Context) ([]byte, error) {
	name := *n.cfg.ResolvConf
	if name == "" {
		return nil
	}
	return func(ctx context.Context) ([]byte, error) {
		data, err := n.host.ReadFile(ctx, name, 1<<20)
		if err != nil {
			return nil, fmt.Errorf("read the host's resolvConf: %w", err)
		}
		return data, nil
	}
}

// cgroupDriver returns a function that asks the runtime for its cgroup driver, cgroupfs or systemd;
// nil if the driver is configured. A runtime too old to answer uses cgroupfs.
func (n *Node) cgroupDriver(runtime interface {
	RuntimeConfig(ctx context.Context) (*runtimeapi.RuntimeConfigResponse, error)
}) func(context.Context) (string, error) {
	if n.cfg.CgroupDriver != "" {
		return nil
	}
	return func(ctx context.Context) (string, error) {
		reply, err := runtime.RuntimeConfig(ctx)
		switch {
		case err != nil && !cri.IsUnimplemented(err):
			return "", err
		case reply.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD && err == nil:
			return "systemd", nil
		}
		return "cgroupfs", nil
	}
}

// nodeIPs returns the addresses of the node: the host's, or this process's if the host is remote
// and does not listen for the node's API.
func (n *Node) nodeIPs(machine []string) ([]string, error) {
	if n.host.Link == nil || n.cfg.KubeletExposure == config.ExposureHost {
		return machine, nil
	}
	server, _, err := rest.DefaultServerUrlFor(n.cluster.Rest)
	if err != nil {
		return nil, err
	}
	ip, err := connect.Published(n.cfg, server)
	return []string{ip}, err
}

// addresses returns the Node's addresses. It never uses the host's own hostname: API servers may
// dial a Hostname address first, so a host could choose where they connect.
func (n *Node) addresses(ips []string) []v1.NodeAddress {
	var out []v1.NodeAddress
	for _, ip := range ips {
		out = append(out, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	return append(out, v1.NodeAddress{Type: v1.NodeHostName, Address: n.name})
}

// reserved returns the resources that pods do not get: systemReserved and kubeReserved, and what
// the hard eviction thresholds hold back.
func reserved(cfg *config.Host, f *host.Facts) (v1.ResourceList, error) {
	sum, err := heldBack(cfg, f.MemoryBytes, f.RootDiskBytes)
	if err != nil {
		return nil, err
	}
	for _, list := range []map[string]string{cfg.SystemReserved, cfg.KubeReserved} {
		for name, amount := range list {
			q, err := resource.ParseQuantity(amount)
			if err != nil {
				return nil, fmt.Errorf("reserved %s %q: %w", name, amount, err)
			}
			total := sum[v1.ResourceName(name)]
			total.Add(q)
			sum[v1.ResourceName(name)] = total
		}
	}
	return sum, nil
}

func handlers(st *runtimeapi.StatusResponse) []v1.NodeRuntimeHandler {
	var out []v1.NodeRuntimeHandler
	for _, h := range st.GetRuntimeHandlers() {
		features := h.GetFeatures()
		recursive, users := features.GetRecursiveReadOnlyMounts(), features.GetUserNamespaces()
		out = append(out, v1.NodeRuntimeHandler{Name: h.Name, Features: &v1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: &recursive, UserNamespaces: &users}})
	}
	return out
}

// recursiveReadOnly reports whether a runtime handler supports recursive read-only mounts.
func (n *Node) recursiveReadOnly(handler string) bool {
	return n.seen.load().handler(handler).GetRecursiveReadOnlyMounts()
}

// userNamespaces reports whether a runtime handler supports user namespaces.
func (n *Node) userNamespaces(handler string) bool {
	return n.seen.load().handler(handler).GetUserNamespaces()
}

// policy returns what the host's owner forbids. Everything else is allowed.
func policy(cfg *config.Host) admit.Policy {
	forbids := func(allow *bool) bool { return allow != nil && !*allow }
	return admit.Policy{
		NoPrivileged:  forbids(cfg.Policy.AllowPrivileged),
		NoHostPath:    forbids(cfg.Policy.AllowHostPath),
		NoHostNetwork: forbids(cfg.Policy.AllowHostNetwork),
		NoNFS:         forbids(cfg.Policy.AllowNFS),
	}
}

// runtimeHandler resolves a RuntimeClass. It reads a class that the informer does not have: the
// class may be newer than the watch, or the node may not be allowed to list classes.
func (n *Node) runtimeHandler(ctx context.Context, class string) (string, error) {
	if c, err := n.runtimeClasses.Get(class); err == nil {
		return c.Handler, nil
	}
	c, err := n.cluster.Client.NodeV1().RuntimeClasses().Get(ctx, class, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return c.Handler, nil
}
