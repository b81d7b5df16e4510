package syncloop

import (
	"sync"

	"k8s.io/component-base/metrics"

	"github.com/bowline-k8s/bowline/kubeletmetrics"
)

// Metrics are the metrics of one node, with the kubelet's names; the zero value counts nothing.
type Metrics struct {
	// illegalEdges counts illegal phase transitions; it stays at zero.
	illegalEdges *metrics.Counter
	// userNamespaces and userNamespacesFailed count, for pods with a user namespace, the sandboxes
	// that were requested, and the sandboxes and containers that could not be started.
	userNamespaces, userNamespacesFailed *metrics.Counter
	startedPods, startedPodsFailed       *metrics.Counter
	started, startedFailed, terminated   *metrics.CounterVec
	rejected, admitted, restarted        *metrics.CounterVec
	orphans                              *metrics.Counter
	worker                               *metrics.HistogramVec
	workerStart, podStart, containers    *metrics.Histogram
	startSLI, startTotal                 *metrics.HistogramVec
	// firstNetwork is set once, for the first pod with a network of its own.
	firstNetwork *metrics.Gauge
	firstSeen    *sync.Once

	sandbox                                            *metrics.HistogramVec
	sandboxFailed                                      *metrics.CounterVec
	imageVolumes, imageVolumesMade, imageVolumesFailed *metrics.Counter
	resizesWanted, resizesDeferred, resizesNever       *metrics.CounterVec
	preempted                                          *metrics.CounterVec
	resize, deferred                                   *metrics.HistogramVec
}

// startBuckets are the bounds of the durations of a pod's start, resizeBuckets those of a resize in
// milliseconds, and deferredBuckets those of a deferred resize's wait, as for a kubelet.
var (
	startBuckets    = []float64{0.5, 1, 2, 3, 4, 5, 6, 8, 10, 20, 30, 45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}
	resizeBuckets   = []float64{10, 50, 100, 500, 1000, 2000, 5000, 10000, 20000, 30000, 60000, 120000, 300000, 600000}
	deferredBuckets = []float64{5, 10, 15, 20, 30, 45, 60, 90, 120, 150, 180, 300, 600, 1200, 1800, 3600}
)

// NewMetrics makes the metrics of a node and registers them with r, which belongs to that node: a
// process may run many nodes.
func NewMetrics(r metrics.KubeRegistry) Metrics {
	m := Metrics{firstSeen: &sync.Once{}}
	f := kubeletmetrics.Maker{Registry: r}
	m.ofPods(f)
	m.ofStarts(f)
	m.ofResizes(f)
	return m
}

func (m *Metrics) ofPods(f kubeletmetrics.Maker) {
	m.illegalEdges = f.Counter("bowline_pod_worker_illegal_phase_edges_total", "Impossible phase transitions that the planner requested. Any is a defect.")
	m.terminated = f.Counters("kubelet_terminated_containers_total", "Cumulative number of container terminations.", "container_type", "exit_code", "reason")
	m.rejected = f.Counters("kubelet_admission_rejections_total", "Cumulative number pod admission rejections by the Kubelet.", "reason")
	m.admitted = f.Counters("kubelet_pod_level_resources_admission_total",
		"Total number of pods admitted during Kubelet admission, categorized by resource configuration mode (pod_and_container_level, pod_level, container_level, or empty for unconfigured/BestEffort) and QoS class.",
		"config_mode", "qos_class")
	m.preempted = f.Counters("kubelet_preemptions", "Cumulative number of pod preemptions by preemption resource", "preemption_signal")
	m.restarted = f.Counters("kubelet_restarted_pods_total",
		"Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)", "static")
	m.orphans = f.Counter("kubelet_orphaned_runtime_pods_total",
		"Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.")
	m.worker = f.Histograms("kubelet_pod_worker_duration_seconds",
		"Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync", metrics.DefBuckets, "operation_type")
	m.containers = f.Histogram("kubelet_containers_per_pod_count", "The number of containers per pod.", metrics.ExponentialBuckets(1, 2, 5))
}

func (m *Metrics) ofStarts(f kubeletmetrics.Maker) {
	m.userNamespaces = f.Counter("kubelet_started_user_namespaced_pods_total", "Cumulative number of pods with user namespaces started.")
	m.userNamespacesFailed = f.Counter("kubelet_started_user_namespaced_pods_errors_total", "Cumulative number of errors when starting pods with user namespaces.")
	m.startedPods = f.Counter("kubelet_started_pods_total", "Cumulative number of pods started")
	m.startedPodsFailed = f.Counter("kubelet_started_pods_errors_total", "Cumulative number of errors when starting pods")
	m.started = f.Counters("kubelet_started_containers_total", "Cumulative number of containers started", "container_type")
	m.startedFailed = f.Counters("kubelet_started_containers_errors_total", "Cumulative number of errors when starting containers", "container_type", "code")
	m.sandbox = f.Histograms("kubelet_run_podsandbox_duration_seconds",
		"Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.", metrics.DefBuckets, "runtime_handler")
	m.sandboxFailed = f.Counters("kubelet_run_podsandbox_errors_total", "Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.", "runtime_handler")
	m.imageVolumes = f.Counter("kubelet_image_volume_requested_total", "Number of requested image volumes.")
	m.imageVolumesMade = f.Counter("kubelet_image_volume_mounted_succeed_total", "Number of successful image volume mounts.")
	m.imageVolumesFailed = f.Counter("kubelet_image_volume_mounted_errors_total", "Number of failed image volume mounts.")
	m.workerStart = f.Histogram("kubelet_pod_worker_start_duration_seconds", "Duration in seconds from kubelet seeing a pod to starting a worker.", metrics.DefBuckets)
	m.podStart = f.Histogram("kubelet_pod_start_duration_seconds",
		"Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run", startBuckets)
	m.startSLI = f.Histograms("kubelet_pod_start_sli_duration_seconds",
		"Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startBuckets)
	m.startTotal = f.Histograms("kubelet_pod_start_total_duration_seconds",
		"Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch", startBuckets)
	m.firstNetwork = f.Gauge("kubelet_first_network_pod_start_sli_duration_seconds",
		"Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch")
}

func (m *Metrics) ofResizes(f kubeletmetrics.Maker) {
	m.resizesWanted = f.Counters("kubelet_container_requested_resizes_total",
		"Number of requested resizes, counted at the container level. Different resources on the same container are counted separately. The 'requirement' label refers to 'memory' or 'limits'; the 'operation' label can be one of 'add', 'remove', 'increase' or 'decrease'.",
		"resource", "requirement", "operation")
	m.resize = f.Histograms("kubelet_pod_resize_duration_milliseconds", "Duration in milliseconds to actuate a pod resize", resizeBuckets, "success")
	m.resizesDeferred = f.Counters("kubelet_pod_deferred_accepted_resizes_total", "Cumulative number of resizes that were accepted after being deferred.", "retry_trigger")
	m.resizesNever = f.Counters("kubelet_pod_infeasible_resizes_total", "Number of infeasible resizes for pods.", "reason_detail")
	m.deferred = f.Histograms("kubelet_pod_deferred_resize_duration_seconds",
		"Duration in seconds that a pod resize remains deferred before completion. Label 'priority_bucket' classifies the pod priority (system-critical: >=2000000000, high: 100000..1999999999, medium: 1..99999, normal: 0/default, low: -999..-1, very-low: <=-1000, unknown: nil pod). Label 'resolution' describes how the deferred resize was resolved (accepted, reverted, terminated).",
		deferredBuckets, "resolution", "priority_bucket")
}

func (m Metrics) off() bool { return m.illegalEdges == nil }

func (m Metrics) illegalEdge() {
	if !m.off() {
		m.illegalEdges.Inc()
	}
}
