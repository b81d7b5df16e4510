package main

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
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// specMachine is what the pods' specs are made from.
func (n *node) specMachine(s *snapshot, hostIPs []string) spec.Machine {
	f := &s.facts
	m := spec.Machine{
		RootDir: n.cfg.RootDirectory, PodLogsDir: n.cfg.PodLogsDirectory,
		CgroupDriver: cmp.Or(n.cfg.CgroupDriver, s.driver), CgroupVersion: f.CgroupVersion,
		Owner: n.stamp, Hostname: f.Hostname, HostIPs: hostIPs, HostResolv: s.resolv,
		MemoryBytes: f.MemoryBytes, CPUs: f.CPUs,
		// containerd clamps what it may not lower; other runtimes are not asked to.
		CanLowerOOMScore: f.CanLowerOOMScore,
		ClusterDomain:    n.cfg.ClusterDomain,
		CPUCFSQuota:      *n.cfg.CPUCFSQuota, CFSPeriodUS: n.cfg.CPUCFSQuotaPeriod.Microseconds(),
		SingleProcessOOMKill: *n.cfg.SingleProcessOOMKill, SeccompDefault: *n.cfg.SeccompDefault,
		SwapControl: f.SwapControl, SELinux: f.SELinux, ThermalThrottle: f.ThermalThrottle,
	}
	m.HugePageSizes = slices.Sorted(maps.Keys(f.HugePages))
	if n.cfg.CgroupRoot != "/" { // which spec writes as nothing
		m.CgroupRoot = n.cfg.CgroupRoot
	}
	if *n.cfg.PodPidsLimit > 0 {
		m.PodPidsLimit = *n.cfg.PodPidsLimit
	}
	return m
}

// hostIPs are the machine's addresses for its pods: the configuration's, or the one
// that others reach it by. An address that the machine still has stays the node's, and
// so does one that went with the default route: what is left then are networks of the
// machine's own, such as that of its pods.
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
		return nil, errors.New("the machine has no address that others could reach; set nodeIP")
	}
	return []string{f.Addresses[0].String()}, nil
}

// resolvConf reads the machine's resolv.conf; nil: the configuration wants none.
func (n *node) resolvConf() func(context.Context) ([]byte, error) {
	name := *n.cfg.ResolvConf
	if name == "" {
		return nil
	}
	return func(ctx context.Context) ([]byte, error) {
		data, err := n.host.ReadFile(ctx, name, 1<<20)
		if err != nil {
			return nil, fmt.Errorf("read the machine's resolvConf: %w", err)
		}
		return data, nil
	}
}

// cgroupDriver asks for the runtime's driver: cgroupfs or systemd; nil: the configuration
// has it. Runtimes too old to say so use cgroupfs.
func (n *node) cgroupDriver(runtime interface {
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

// nodeIPs are the addresses of the node: those of the machine, or of this process
// where the machine is far and does not listen for it.
func (n *node) nodeIPs(machine []string) ([]string, error) {
	if n.host.link == nil || n.cfg.KubeletExposure == config.ExposureHost {
		return machine, nil
	}
	server, _, err := rest.DefaultServerUrlFor(n.cluster.rest)
	if err != nil {
		return nil, err
	}
	ip, err := published(n.cfg, server)
	return []string{ip}, err
}

// addresses never holds what a machine calls itself: API servers may dial a Hostname
// address first, and so would go where a machine sends them.
func (n *node) addresses(ips []string) []v1.NodeAddress {
	var out []v1.NodeAddress
	for _, ip := range ips {
		out = append(out, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	return append(out, v1.NodeAddress{Type: v1.NodeHostName, Address: n.name})
}

// reserved is what pods do not get of the machine: what the configuration names,
// beside what the hard eviction thresholds hold back.
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

// recursiveReadOnly tells whether a handler can make recursive read-only mounts.
func (n *node) recursiveReadOnly(handler string) bool {
	return n.seen.load().handler(handler).GetRecursiveReadOnlyMounts()
}

// userNamespaces tells whether a handler can give a pod users of its own.
func (n *node) userNamespaces(handler string) bool {
	return n.seen.load().handler(handler).GetUserNamespaces()
}

// policy is what the machine's owner forbids: what is not said is allowed.
func policy(cfg *config.Host) admit.Policy {
	forbids := func(allow *bool) bool { return allow != nil && !*allow }
	return admit.Policy{
		NoPrivileged:  forbids(cfg.Policy.AllowPrivileged),
		NoHostPath:    forbids(cfg.Policy.AllowHostPath),
		NoHostNetwork: forbids(cfg.Policy.AllowHostNetwork),
		NoNFS:         forbids(cfg.Policy.AllowNFS),
	}
}

// runtimeHandler looks a RuntimeClass up. One that has not been seen is asked for: it may
// be newer than what the watch has brought, or the node may not list them.
func (n *node) runtimeHandler(ctx context.Context, class string) (string, error) {
	if c, err := n.runtimeClasses.Get(class); err == nil {
		return c.Handler, nil
	}
	c, err := n.cluster.client.NodeV1().RuntimeClasses().Get(ctx, class, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return c.Handler, nil
}
