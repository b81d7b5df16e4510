package kubeletmetrics

import (
	"strconv"
	"time"

	"k8s.io/component-base/metrics"
)

// Parts are the metrics of the parts that know no metrics: they call functions, and package node
// passes the methods of Parts for them.
type Parts struct {
	statusSync                               *metrics.Histogram
	relist, relistInterval, podRelist        *metrics.Histogram
	hintsDropped                             *metrics.Counter
	evictions                                *metrics.CounterVec
	evictionAge                              *metrics.HistogramVec
	pull                                     *metrics.HistogramVec
	ensured, checked, collected              *metrics.CounterVec
	orphansCleaned, orphansFailed            *metrics.Gauge
	shutdownBegan, shutdownEnded             *metrics.Gauge
	storage                                  *metrics.HistogramVec
	pluginFailed                             *metrics.CounterVec
	plugin                                   *metrics.HistogramVec
	clientRenewFailed, serverRenewFailed     *metrics.Counter
	serverRotation                           *metrics.Histogram
	httpsFallbacks, sleepsCut                *metrics.Counter
	websockets                               *metrics.CounterVec
	preDriver, preRegistration, registration *metrics.Gauge
	postRegistration, startup                *metrics.Gauge
}

// NewParts registers the metrics with r.
func NewParts(r metrics.KubeRegistry) *Parts {
	f, p := Maker{r}, &Parts{}
	p.ofPods(f)
	p.ofImages(f)
	p.ofNode(f)
	return p
}

func (p *Parts) ofPods(f Maker) {
	p.statusSync = f.Histogram("kubelet_pod_status_sync_duration_seconds",
		"Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
		[]float64{0.010, 0.050, 0.100, 0.500, 1, 5, 10, 20, 30, 45, 60})
	p.relist = f.Histogram("kubelet_pleg_relist_duration_seconds", "Duration in seconds for relisting pods in PLEG.", metrics.DefBuckets)
	p.relistInterval = f.Histogram("kubelet_pleg_relist_interval_seconds", "Interval in seconds between relisting in PLEG.", metrics.DefBuckets)
	p.podRelist = f.Histogram("kubelet_pleg_pod_relist_duration_seconds", "Duration in seconds for relisting a single pod in PLEG.", metrics.DefBuckets)
	p.hintsDropped = f.Counter("kubelet_pleg_discard_events", "The number of discard events in PLEG.")
	p.evictions = f.Counters("kubelet_evictions", "Cumulative number of pod evictions by eviction signal", "eviction_signal")
	p.evictionAge = f.Histograms("kubelet_eviction_stats_age_seconds",
		"Time between when stats are collected, and when pod is evicted based on those stats by eviction signal", metrics.DefBuckets, "eviction_signal")
	p.storage = metrics.NewHistogramVec(&metrics.HistogramOpts{Name: "storage_operation_duration_seconds", Help: "Storage operation duration",
		Buckets: []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}, StabilityLevel: metrics.BETA},
		[]string{"volume_plugin", "operation_name", "status", "migrated"})
	f.Registry.MustRegister(p.storage)
	p.orphansCleaned = f.Gauge("kubelet_orphan_pod_cleaned_volumes", "The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.")
	p.orphansFailed = f.Gauge("kubelet_orphan_pod_cleaned_volumes_errors", "The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.")
	p.httpsFallbacks = f.Counter("kubelet_lifecycle_handler_http_fallbacks_total", "The number of times lifecycle handlers successfully fell back to http from https.")
	p.sleepsCut = f.Counter("kubelet_sleep_action_terminated_early_total", "The number of times lifecycle sleep handler got terminated before it finishes")
}

func (p *Parts) ofImages(f Maker) {
	p.pull = f.Histograms("kubelet_image_pull_duration_seconds", "Duration in seconds to pull an image.",
		[]float64{1, 5, 10, 20, 30, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600}, "image_size_in_bytes")
	p.ensured = f.Counters("kubelet_image_manager_ensure_image_requests_total", "Number of ensure-image requests processed by the kubelet.",
		"pull_policy", "present_locally", "pull_required")
	p.checked = f.Counters("kubelet_imagemanager_image_mustpull_checks_total",
		"Counter for how many times kubelet checked whether credentials need to be re-verified to access an image", "result")
	p.collected = f.Counters("kubelet_image_garbage_collected_total",
		"Total number of images garbage collected by the kubelet, whether through disk usage or image age.", "reason")
	p.pluginFailed = f.Counters("kubelet_credential_provider_plugin_errors_total", "Number of errors from credential provider plugin", "plugin_name")
	p.plugin = f.Histograms("kubelet_credential_provider_plugin_duration", "Duration of execution in seconds for credential provider plugin", metrics.DefBuckets, "plugin_name")
}

func (p *Parts) ofNode(f Maker) {
	p.shutdownBegan = f.Gauge("kubelet_graceful_shutdown_start_time_seconds", "Last graceful shutdown start time since unix epoch in seconds")
	p.shutdownEnded = f.Gauge("kubelet_graceful_shutdown_end_time_seconds", "Last graceful shutdown end time since unix epoch in seconds")
	p.clientRenewFailed = f.Counter("kubelet_certificate_manager_client_expiration_renew_errors", "Counter of certificate renewal errors.")
	p.serverRenewFailed = f.Counter("kubelet_server_expiration_renew_errors", "Counter of certificate renewal errors.")
	p.serverRotation = f.Histogram("kubelet_certificate_manager_server_rotation_seconds",
		"Histogram of the number of seconds the previous certificate lived before being rotated.",
		[]float64{60, 3600, 14400, 86400, 604800, 2592000, 7776000, 15552000, 31104000, 124416000})
	p.websockets = f.Counters("kubelet_websocket_streaming_requests_total",
		"Total number of WebSocket streaming requests (exec/attach/portforward) received by the kubelet.", "subresource")
	p.preDriver = f.Gauge("kubelet_node_startup_pre_kubelet_duration_seconds", "Duration in seconds of node startup before kubelet starts.")
	p.preRegistration = f.Gauge("kubelet_node_startup_pre_registration_duration_seconds", "Duration in seconds of node startup before registration.")
	p.registration = f.Gauge("kubelet_node_startup_registration_duration_seconds", "Duration in seconds of node startup during registration.")
	p.postRegistration = f.Gauge("kubelet_node_startup_post_registration_duration_seconds", "Duration in seconds of node startup after registration.")
	p.startup = f.Gauge("kubelet_node_startup_duration_seconds", "Duration in seconds of node startup in total.")
}

// StatusSynced observes the time from a pod status that differs from the API server's until the API
// server has it.
func (p *Parts) StatusSynced(took time.Duration) { p.statusSync.Observe(took.Seconds()) }

// Relisted observes a relist. One that waited for the link is no relist of the runtime; pleg does not
// report it. interval is 0 for the first one.
func (p *Parts) Relisted(took, interval time.Duration) {
	p.relist.Observe(took.Seconds())
	if interval > 0 {
		p.relistInterval.Observe(interval.Seconds())
	}
}

// PodRelisted observes a look at one pod, and HintDropped counts an event of the runtime that was not
// followed.
func (p *Parts) PodRelisted(took time.Duration) { p.podRelist.Observe(took.Seconds()) }
func (p *Parts) HintDropped()                   { p.hintsDropped.Inc() }

// Evicted counts an eviction, by signal.
func (p *Parts) Evicted(signal string) { p.evictions.WithLabelValues(signal).Inc() }

// EvictionDecided observes the age of the measurement that an eviction is decided on.
func (p *Parts) EvictionDecided(signal string, age time.Duration) {
	p.evictionAge.WithLabelValues(signal).Observe(age.Seconds())
}

// Stored observes an operation on a pod's volume.
func (p *Parts) Stored(plugin, operation string, took time.Duration, err error) {
	status := "success"
	if err != nil {
		status = "fail-unknown"
	}
	p.storage.WithLabelValues(plugin, operation, status, "false").Observe(took.Seconds())
}

// OrphansCleaned sets what the last sweep did with the directories of pods that are gone: with how
// many, and for how many of them it failed.
func (p *Parts) OrphansCleaned(pods, failed int) {
	p.orphansCleaned.Set(float64(pods))
	p.orphansFailed.Set(float64(failed))
}

// HTTPSFallback counts a lifecycle hook that was answered over HTTP, not HTTPS, and SleepCut one that
// slept and was ended before its time.
func (p *Parts) HTTPSFallback() { p.httpsFallbacks.Inc() }
func (p *Parts) SleepCut()      { p.sleepsCut.Inc() }

// Pulled observes a pull, including the time that it waited. size is that of the image, 0 if it is
// unknown.
func (p *Parts) Pulled(size uint64, took time.Duration) {
	p.pull.WithLabelValues(imageSize(size)).Observe(took.Seconds())
}

// imageSizes are the upper bounds of the sizes that have a label, in MiB.
var imageSizes = []struct {
	most  uint64
	label string
}{
	{10, "0-10MB"}, {100, "10MB-100MB"}, {500, "100MB-500MB"}, {1 << 10, "500MB-1GB"}, {5 << 10, "1GB-5GB"}, {10 << 10, "5GB-10GB"},
	{20 << 10, "10GB-20GB"}, {30 << 10, "20GB-30GB"}, {40 << 10, "30GB-40GB"}, {60 << 10, "40GB-60GB"}, {100 << 10, "60GB-100GB"},
}

func imageSize(bytes uint64) string {
	if bytes == 0 {
		return "N/A"
	}
	for _, s := range imageSizes {
		if bytes <= s.most<<20 {
			return s.label
		}
	}
	return "GT100GB"
}

// ImageEnsured counts a request for an image: by the pull policy in lower case, whether the image was
// present, and whether it had to be pulled; nil: it is not known.
func (p *Parts) ImageEnsured(policy string, present, pull *bool) {
	p.ensured.WithLabelValues(policy, known(present), known(pull)).Inc()
}

func known(b *bool) string {
	if b == nil {
		return "unknown"
	}
	return strconv.FormatBool(*b)
}

// ImageChecked counts a check whether a pod may use an image that is present, and ImageCollected an
// image that was removed, for its age or for space.
func (p *Parts) ImageChecked(result string)   { p.checked.WithLabelValues(result).Inc() }
func (p *Parts) ImageCollected(reason string) { p.collected.WithLabelValues(reason).Inc() }

// PluginRan observes a run of a credential provider.
func (p *Parts) PluginRan(name string, took time.Duration, err error) {
	p.plugin.WithLabelValues(name).Observe(took.Seconds())
	if err != nil {
		p.pluginFailed.WithLabelValues(name).Inc()
	}
}

// ShuttingDown sets when a graceful shutdown began, and ShutDown when its pods have ended.
func (p *Parts) ShuttingDown(at time.Time) {
	p.shutdownBegan.Set(unix(at))
	p.shutdownEnded.Set(0)
}

func (p *Parts) ShutDown(at time.Time) { p.shutdownEnded.Set(unix(at)) }

func unix(at time.Time) float64 { return float64(at.UnixNano()) / 1e9 }

// ClientCertificate and ServerCertificate count failed renewals of the node's certificates.
func (p *Parts) ClientCertificate() Renewals { return Renewals{failed: p.clientRenewFailed} }
func (p *Parts) ServerCertificate() Renewals { return Renewals{p.serverRenewFailed, p.serverRotation} }

// Renewals counts the renewals of a certificate.
type Renewals struct {
	failed   *metrics.Counter
	rotation *metrics.Histogram // nil: not observed
}

// Inc counts a renewal that failed.
func (r Renewals) Inc() { r.failed.Inc() }

// Observe observes how long a certificate was used before the next one replaced it, in seconds.
func (r Renewals) Observe(seconds float64) {
	if r.rotation != nil {
		r.rotation.Observe(seconds)
	}
}

// Streamed counts a stream over WebSocket: exec, attach or portforward.
func (p *Parts) Streamed(subresource string) { p.websockets.WithLabelValues(subresource).Inc() }

// Startup are the times of a node that was registered for the first time. Booted is when its host
// booted; zero: unknown.
type Startup struct{ Booted, Began, Asked, Registered, Ready time.Time }

// Started observes them.
func (p *Parts) Started(s Startup) {
	if !s.Booted.IsZero() {
		p.preDriver.Set(s.Began.Sub(s.Booted).Seconds())
		p.startup.Set(s.Ready.Sub(s.Booted).Seconds())
	}
	p.preRegistration.Set(s.Asked.Sub(s.Began).Seconds())
	p.registration.Set(s.Registered.Sub(s.Asked).Seconds())
	p.postRegistration.Set(s.Ready.Sub(s.Registered).Seconds())
}
