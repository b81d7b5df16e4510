package kubeletmetrics

import (
	"k8s.io/component-base/metrics"

	"github.com/bowline-k8s/bowline/features"
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
	// Volumes is the number of volumes, by plugin and state.
	Volumes map[Volumes]int
	// Working is the number of pods with a worker.
	Working map[Work]int
	// PendingResizes are the pods whose resize is deferred or infeasible.
	PendingResizes    map[Pending]int
	ResizesInProgress int
	// PodCertificates is the number of projections of certificates into pods.
	PodCertificates map[PodCertificate]int
	// Logs is what containers' logs use, in bytes.
	Logs map[Log]int64
	// Claims are the file systems of persistent volume claims.
	Claims map[Claim]host.FileSystem
	// CertificateTTL are the seconds until the node's certificates expire, by their name in the metrics:
	// client, server. One that the node does not manage is missing.
	CertificateTTL map[string]float64
	// RelistedAt is when the runtime was last listed, in seconds since 1970; 0: never.
	RelistedAt float64
	// Features are the feature gates.
	Features []features.State
}

// Claim is a persistent volume claim.
type Claim struct{ Namespace, Name string }

// Volumes are the volumes of one plugin in a state: that are set up, or that are to be.
type Volumes struct{ Plugin, State string }

const (
	Actual  = "actual_state_of_world"
	Desired = "desired_state_of_world"
)

// Work is what a pod's worker does: its Lifecycle, where the pod comes from, and whether it is static:
// true, empty, or unknown for a pod that only the runtime has.
type Work struct{ Lifecycle, Config, Static string }

const (
	Syncing     = "sync"
	Terminating = "terminating"
	Terminated  = "terminated"

	OfSource    = "desired"
	Orphaned    = "orphan"
	RuntimeOnly = "runtime_only"
)

// Pending is a resize that waits: deferred or infeasible, with the range of the pod's priority.
type Pending struct{ Reason, Priority string }

// PodCertificate is a state of a projection, by signer.
type PodCertificate struct{ Signer, State string }

// Log is the log of a container.
type Log struct{ UID, Namespace, Pod, Container string }

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
	working         = desc("kubelet_working_pods", "Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.", "lifecycle", "config", "static")
	pendingResizes  = desc("kubelet_pod_pending_resizes", "Number of pending resizes for pods. Label 'priority_bucket' classifies the pod priority (system-critical: >=2000000000, high: 100000..1999999999, medium: 1..99999, normal: 0/default, low: -999..-1, very-low: <=-1000, unknown: nil pod). Label 'reason' describes the state (deferred, infeasible).", "reason", "priority_bucket")
	resizing        = desc("kubelet_pod_in_progress_resizes", "Number of in-progress resizes for pods.")
	podCertificates = desc("kubelet_podcertificate_states", "Gauge vector reporting the number of pod certificate projected volume sources, faceted by signer_name and state.", "signer_name", "state")
	logUsed         = desc("kubelet_container_log_filesystem_used_bytes", "Bytes used by the container's logs on the filesystem.", "uid", "namespace", "pod", "container")
	plegLastSeen    = desc("kubelet_pleg_last_seen_seconds", "Timestamp in seconds when PLEG was last seen active.")
	claimCapacity   = ofClaim("capacity_bytes", "Capacity in bytes of the volume")
	claimAvailable  = ofClaim("available_bytes", "Number of available bytes in the volume")
	claimUsed       = ofClaim("used_bytes", "Number of used bytes in the volume")
	claimInodes     = ofClaim("inodes", "Maximum number of inodes in the volume")
	claimInodesFree = ofClaim("inodes_free", "Number of free inodes in the volume")
	claimInodesUsed = ofClaim("inodes_used", "Number of used inodes in the volume")
	featureEnabled  = metrics.NewDesc("kubernetes_feature_enabled", "This metric records the data about the stage and enablement of a k8s feature.", []string{"name", "stage"}, nil, metrics.BETA, "")
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
	s.Register(r)
	return r
}

// Register registers the metrics of a state with r.
func (s State) Register(r metrics.KubeRegistry) { r.CustomMustRegister(&stateCollector{state: s}) }

type stateCollector struct {
	metrics.BaseStableCollector
	state State
}

// DescribeWithStability implements metrics.StableCollector.
func (c *stateCollector) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{nodeName, cgroupVersion, runningPods, containers, desiredPods, activePods, mirrorPods, ephemeral, volumes, plegLastSeen,
		working, pendingResizes, resizing, podCertificates, logUsed,
		claimCapacity, claimAvailable, claimUsed, claimInodes, claimInodesFree, claimInodesUsed, featureEnabled} {
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
	for v, n := range s.Volumes {
		gauge(volumes, float64(n), v.Plugin, v.State)
	}
	s.pods(gauge)
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
	for _, f := range s.Features {
		on := 0.0
		if f.Enabled {
			on = 1
		}
		gauge(featureEnabled, on, f.Name, f.Stage)
	}
	for name, ttl := range s.CertificateTTL {
		if d, ok := certificates[name]; ok {
			gauge(d, ttl)
		}
	}
}

// pods shows what the workers do.
func (s State) pods(gauge func(d *metrics.Desc, v float64, labels ...string)) {
	for _, lifecycle := range []string{Syncing, Terminating, Terminated} {
		for _, of := range []Work{{Config: OfSource}, {Config: OfSource, Static: "true"}, {Config: Orphaned}, {Config: Orphaned, Static: "true"}, {Config: RuntimeOnly, Static: "unknown"}} {
			of.Lifecycle = lifecycle
			gauge(working, float64(s.Working[of]), of.Lifecycle, of.Config, of.Static)
		}
	}
	for p, n := range s.PendingResizes {
		gauge(pendingResizes, float64(n), p.Reason, p.Priority)
	}
	gauge(resizing, float64(s.ResizesInProgress))
	for c, n := range s.PodCertificates {
		gauge(podCertificates, float64(n), c.Signer, c.State)
	}
	for l, bytes := range s.Logs {
		gauge(logUsed, float64(bytes), l.UID, l.Namespace, l.Pod, l.Container)
	}
}
