package node

import (
	"slices"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// hostWarning is a Warning event on the node about its host, with a kubelet's reason.
type hostWarning struct{ reason, message string }

// hostWarnings returns what a kubelet warns of on such a host.
func hostWarnings(cfg *config.Host, s *snapshot) (found []hostWarning) {
	if s.facts.CgroupVersion == 1 {
		found = append(found, hostWarning{"CgroupV1", "the host has cgroup v1, which Kubernetes is going to drop; boot it with cgroup v2"})
	}
	if len(s.facts.Swaps) > 0 && !volume.NoSwapSupported(s.facts.KernelVersion) {
		found = append(found, hostWarning{"PossibleMemoryBackedVolumesOnDisk", "the host has swap, and its kernel does not know the tmpfs option noswap: " +
			"memory-backed volumes, such as Secrets, may get onto its disk"})
	}
	if *cfg.ResolvConf == "" {
		return found
	}
	if message := spec.CheckResolvConf(s.resolv, *cfg.ResolvConf, cfg.ClusterDomain); message != "" {
		found = append(found, hostWarning{"CheckLimitsForResolvConf", message})
	}
	return found
}

// warnOfHost records the warnings of the host that the last snapshot did not have; last is nil at the
// start.
func (n *Node) warnOfHost(last, next *snapshot) {
	var known []hostWarning
	if last != nil {
		known = hostWarnings(n.cfg, last)
	}
	for _, w := range hostWarnings(n.cfg, next) {
		if !slices.Contains(known, w) {
			n.warnOnNode(w.reason, w.message)
		}
	}
}
