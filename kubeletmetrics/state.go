package kubeletmetrics

import (
	"k8s.io/component-base/metrics"

	"github.com/bowline-k8s/bowline/host"
)

// State is what a node has at the time of a scrape.
type State struct {
	NodeName string
	// CgroupVersion is that of the host.
	CgroupVersion int
	// Sandboxes is the number of pods with a running sandbox; Containers the number of containers by
	// state: running, created, exited, unknown.
	Sandboxes  int
	Containers map[string]int
	// Desired are the pods of all sources, Active those that have not ended; by whether they are static.
	Desired, Active map[bool]int
	// MirrorPods is the number of static pods, which have mirror pods.
	MirrorPods          int
	EphemeralContainers int
	// Volumes is the number of volumes that are set up, by plugin.
	Volumes map[string]int
	// Claims are the file systems of persistent volume claims.
	Claims map[Claim]host.FileSystem
	// CertificateTTL are the seconds until the node's certificates expire, by their name in the metrics:
	// client, server. One that the node does not manage is missing.
	CertificateTTL map[string]float64
	// RelistedAt is when the runtime was last listed, in seconds since 1970; 0: never.
	RelistedAt float64
}

// Claim is a persistent volume claim.
type Claim struct{ Namespace, Name string }

var (
	nodeName        = desc("kubelet_node_name", "The node's name. The count is always 1.", "node")
	cgroupVersion   = desc("kubelet_cgroup_version", "cgroup version on the hosts.")
	runningPods     = desc("kubelet_running_pods", "Number of pods that have a running pod sandbox")
	containers      = desc("kubelet_running_containers", "Number of containers currently running", "container_state")
	desiredPods     = desc("kubelet_desired_pods", "The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.", "static")
	activePods      = desc("kubelet_active_pods", "The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.", "static")
	mirrorPods      = desc("kubelet_mirror_pods", "The number of mirror pods the kubelet will try to create (one per admitted static pod)")
	ephemeral       = desc("kubelet_managed_ephemeral_containers", "Current number of ephemeral containers in pods managed by this kubelet.")
	volumes         = desc("volume_manager_total_volumes", "Number of volumes in Volume Manager", "plugin_name", "state")
	plegLastSeen    = desc("kubelet_pleg_last_seen_seconds", "Timestamp in seconds when PLEG was last seen active.")
	claimCapacity   = ofClaim("capacity_bytes", "Capacity in bytes of the volume")
	claimAvailable  = ofClaim("available_bytes", "Number of available bytes in the volume")
	claimUsed       = ofClaim("used_bytes", "Number of used bytes in the volume")
	claimInodes     = ofClaim("inodes", "Maximum number of inodes in the volume")
	claimInodesFree = ofClaim("inodes_free", "Number of free inodes in the volume")
	claimInodesUsed = ofClaim("inodes_used", "Number of used inodes in the volume")
	certificates    = map[string]*metrics.Desc{
		"client": desc("kubelet_certificate_manager_client_ttl_seconds", "Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry (negative if already expired). If client certificate is invalid or unused, the value will be +INF."),
		"server": desc("kubelet_certificate_manager_server_ttl_seconds", "Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF."),
	}
)

func desc(name, help string, labels ...string) *metrics.Desc {
	return metrics.NewDesc(name, help, labels, nil, metrics.ALPHA, "")
}

func ofClaim(what, help string) *metrics.Desc {
	return desc("kubelet_volume_stats_"+what, help, "namespace", "persistentvolumeclaim")
}

// Registry returns a registry with the metrics of a state, for one scrape.
func (s State) Registry() metrics.KubeRegistry {
	r := metrics.NewKubeRegistry()
	r.CustomMustRegister(&stateCollector{state: s})
	return r
}

type stateCollector struct {
	metrics.BaseStableCollector
	state State
}

// DescribeWithStability implements metrics.StableCollector.
func (c *stateCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{nodeName, cgroupVersion, runningPods, containers, desiredPods, activePods, mirrorPods, ephemeral, volumes, plegLastSeen,
		claimCapacity, claimAvailable, claimUsed, claimInodes, claimInodesFree, claimInodesUsed} {
		ch <- d
	}
	for _, d := range certificates {
		ch <- d
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *stateCollector) CollectWithStability(ch chan<- metrics.Metric) {
	s := c.state
	gauge := func(d *metrics.Desc, v float64, labels ...string) {
		ch <- metrics.NewLazyConstMetric(d, metrics.GaugeValue, v, labels...)
	}
	gauge(nodeName, 1, s.NodeName)
	gauge(cgroupVersion, float64(s.CgroupVersion))
	gauge(runningPods, float64(s.Sandboxes))
	for state, n := range s.Containers {
		gauge(containers, float64(n), state)
	}
	for _, static := range []bool{false, true} {
		label := map[bool]string{false: "", true: "true"}[static]
		gauge(desiredPods, float64(s.Desired[static]), label)
		gauge(activePods, float64(s.Active[static]), label)
	}
	gauge(mirrorPods, float64(s.MirrorPods))
	gauge(ephemeral, float64(s.EphemeralContainers))
	for plugin, n := range s.Volumes {
		gauge(volumes, float64(n), plugin, "actual_state_of_world")
	}
	if s.RelistedAt > 0 {
		gauge(plegLastSeen, s.RelistedAt)
	}
	for claim, fs := range s.Claims {
		at := []string{claim.Namespace, claim.Name}
		gauge(claimCapacity, float64(fs.Bytes), at...)
		gauge(claimAvailable, float64(fs.FreeBytes), at...)
		gauge(claimUsed, float64(fs.Bytes-fs.FreeBytes), at...)
		gauge(claimInodes, float64(fs.Inodes), at...)
		gauge(claimInodesFree, float64(fs.InodesFree), at...)
		gauge(claimInodesUsed, float64(fs.Inodes-fs.InodesFree), at...)
	}
	for name, ttl := range s.CertificateTTL {
		if d, ok := certificates[name]; ok {
			gauge(d, ttl)
		}
	}
}
