package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// machine gathers what the pods' specs are made from.
func (n *node) machine(ctx context.Context) (spec.Machine, error) {
	m := spec.Machine{
		RootDir: n.cfg.RootDirectory, PodLogsDir: n.cfg.PodLogsDirectory,
		CgroupDriver: n.cfg.CgroupDriver, CgroupVersion: n.facts.CgroupVersion,
		Owner: n.stamp, Hostname: n.facts.Hostname,
		MemoryBytes: n.facts.MemoryBytes, CPUs: n.facts.CPUs,
		// containerd clamps what it may not lower; other runtimes are not asked to.
		CanLowerOOMScore: n.facts.CanLowerOOMScore,
		ClusterDomain:    n.cfg.ClusterDomain, ClusterDNS: n.cfg.ClusterDNS,
		CPUCFSQuota: *n.cfg.CPUCFSQuota,
	}
	m.HugePageSizes = slices.Sorted(maps.Keys(n.facts.HugePages))
	if n.cfg.CgroupRoot != "/" { // which spec writes as nothing
		m.CgroupRoot = n.cfg.CgroupRoot
	}
	if *n.cfg.PodPidsLimit > 0 {
		m.PodPidsLimit = *n.cfg.PodPidsLimit
	}
	if m.CgroupDriver == "" {
		m.CgroupDriver = cgroupDriver(ctx, n.runtime)
	}
	for _, ip := range strings.Split(n.cfg.NodeIP, ",") {
		if ip = strings.TrimSpace(ip); ip != "" {
			m.HostIPs = append(m.HostIPs, ip)
		}
	}
	if len(m.HostIPs) == 0 {
		if len(n.facts.Addresses) == 0 {
			return m, errors.New("the machine has no address that others could reach; set nodeIP")
		}
		m.HostIPs = []string{n.facts.Addresses[0].String()}
	}
	if name := *n.cfg.ResolvConf; name != "" {
		data, err := n.host.ReadFile(ctx, name, 1<<20)
		if err != nil {
			return m, fmt.Errorf("read the machine's resolvConf: %w", err)
		}
		m.HostResolv = data
	}
	return m, nil
}

// cgroupDriver is what the runtime reports; runtimes too old to say so use cgroupfs.
func cgroupDriver(ctx context.Context, client *cri.Client) string {
	reply, err := client.RuntimeConfig(ctx)
	if err == nil && reply.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD {
		return "systemd"
	}
	return "cgroupfs"
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

func (n *node) addresses(ips []string) []v1.NodeAddress {
	var out []v1.NodeAddress
	for _, ip := range ips {
		out = append(out, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	return append(out, v1.NodeAddress{Type: v1.NodeHostName, Address: n.facts.Hostname})
}

// reserved is what pods do not get of the machine: what the configuration names,
// beside what the hard eviction thresholds hold back.
func (n *node) reserved() (v1.ResourceList, error) {
	sum, err := heldBack(n.cfg, n.facts.MemoryBytes, n.facts.RootDiskBytes)
	if err != nil {
		return nil, err
	}
	for _, list := range []map[string]string{n.cfg.SystemReserved, n.cfg.KubeReserved} {
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

// userNamespaces tells which handlers can give a pod users of its own.
func userNamespaces(st *runtimeapi.StatusResponse) func(handler string) bool {
	can := map[string]bool{}
	for _, h := range st.GetRuntimeHandlers() {
		can[h.Name] = h.GetFeatures().GetUserNamespaces()
	}
	return func(handler string) bool { return can[handler] }
}

// policy is what the machine's owner forbids: what is not said is allowed.
func policy(cfg *config.Host) admit.Policy {
	forbids := func(allow *bool) bool { return allow != nil && !*allow }
	return admit.Policy{
		NoPrivileged:  forbids(cfg.Policy.AllowPrivileged),
		NoHostPath:    forbids(cfg.Policy.AllowHostPath),
		NoHostNetwork: forbids(cfg.Policy.AllowHostNetwork),
	}
}

// runtimeHandler looks a RuntimeClass up. Few pods name one, so that asking each
// time costs less than a watch.
func (n *node) runtimeHandler(ctx context.Context, class string) (string, error) {
	c, err := n.cluster.client.NodeV1().RuntimeClasses().Get(ctx, class, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return c.Handler, nil
}
