package config

import (
	"maps"
	"path"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/features"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

const defaultEndpoint = "unix:///run/containerd/containerd.sock"

func setDefaults(c *BowlineConfiguration) {
	setLoggingDefaults(c.Logging)
	setNodeDefaults(&c.NodeSettings)
	if c.HostObjects != nil {
		orDefault(&c.HostObjects.Template.Kubeconfig, c.Kubeconfig)
	}
	for i := range c.Hosts {
		h := &c.Hosts[i]
		orDefault(&h.Name, h.NodeName)
		if u, err := endpoint.Parse(h.Endpoint); err == nil && h.Remote() {
			orDefault(&h.Name, u.Host)
		}
		orDefault(&h.Name, "local")
		orDefault(&h.Endpoint, defaultEndpoint)
		if path.IsAbs(h.Endpoint) {
			h.Endpoint = "unix://" + h.Endpoint
		}
		orDefault(&h.Kubeconfig, c.Kubeconfig)
		if h.SSH.Secret != nil {
			orDefault(&h.SSH.Secret.Kubeconfig, h.Kubeconfig)
		}
		orDefault(&h.RootDirectory, "/var/lib/kubelet")
		orDefault(&h.Server.Address, "0.0.0.0")
		orDefault(&h.KubeletExposure, ExposureProcess)
		if !h.Remote() || h.Exposed() {
			orDefault(&h.Server.Port, 10250)
		}
		orDuration(&h.LinkGrace, 40*time.Second)
		orPointer(&h.Policy.AllowPrivileged, true)
		orPointer(&h.Policy.AllowHostPath, true)
		orPointer(&h.Policy.AllowHostNetwork, true)
		orPointer(&h.Policy.AllowNFS, true)
		setNodeDefaults(&h.NodeSettings)
		if h.Remote() {
			orDuration(&h.NodeStatusUpdateFrequency, time.Minute)
		}
		orDuration(&h.NodeStatusUpdateFrequency, 10*time.Second)
	}
}

func setNodeDefaults(n *NodeSettings) {
	orDefault(&n.PodLogsDirectory, "/var/log/pods")
	orDefault(&n.MaxPods, 110)
	orPointer(&n.PodPidsLimit, -1)
	orPointer(&n.CPUCFSQuota, true)
	orDuration(&n.CPUCFSQuotaPeriod, 100*time.Millisecond)
	orPointer(&n.SingleProcessOOMKill, false)
	orPointer(&n.UserNamespaces.IDsPerPod, idsUnit)
	orPointer(&n.SeccompDefault, false)
	orPointer(&n.EnableSystemLogHandler, true)
	orPointer(&n.EnableSystemLogQuery, false)
	orPointer(&n.FailSwapOn, true)
	orDefault(&n.CgroupRoot, "/")
	orDefault(&n.ClusterDomain, "cluster.local")
	orPointer(&n.ResolvConf, "/etc/resolv.conf")
	orDuration(&n.SyncFrequency, time.Minute)
	orDuration(&n.VolumeStatsAggPeriod, time.Minute)
	orDuration(&n.NodeStatusReportFrequency, 5*time.Minute)
	orPointer(&n.NodeStatusMaxImages, 50)
	orDefault(&n.NodeLeaseDurationSeconds, 40)
	orPointer(&n.KubeAPIQPS, 50)
	orPointer(&n.KubeAPIBurst, 100)
	orPointer(&n.EventRecordQPS, 50)
	orPointer(&n.EventBurst, 100)
	orPointer(&n.RegistryPullQPS, 5)
	orPointer(&n.RegistryBurst, 10)
	orDefault(&n.TLSMinVersion, "VersionTLS12")
	orDuration(&n.StreamingConnectionIdleTimeout, 4*time.Hour)
	orPointer(&n.SerializeImagePulls, false)
	orPointer(&n.ImageGCHighThresholdPercent, 85)
	orPointer(&n.ImageGCLowThresholdPercent, 80)
	orDuration(&n.ImageMinimumGCAge, 2*time.Minute)
	setEvictionDefaults(n)
	orDuration(&n.EvictionPressureTransitionPeriod, 5*time.Minute)
	orPointer(&n.Authentication.Webhook.Enabled, true)
	orDuration(&n.Authentication.Webhook.CacheTTL, 2*time.Minute)
	orPointer(&n.Authentication.Anonymous.Enabled, false)
	orDefault(&n.Identity.Mode, IdentityKubeconfig)
	orDefault(&n.Identity.CertificateDirectory, "/var/lib/bowline/pki")
	orPointer(&n.ServerTLSBootstrap, false)
	orDefault(&n.Authorization.Mode, AuthorizationWebhook)
	orDuration(&n.Authorization.Webhook.CacheAuthorizedTTL, 5*time.Minute)
	orDuration(&n.Authorization.Webhook.CacheUnauthorizedTTL, 30*time.Second)
	orDefault(&n.ContainerLogMaxSize, "10Mi")
	orPointer(&n.ContainerLogMaxFiles, 5)
	orPointer(&n.ContainerLogMaxWorkers, 1)
	orDuration(&n.ContainerLogMonitorInterval, 10*time.Second)
	if len(n.EnforceNodeAllocatable) == 0 {
		n.EnforceNodeAllocatable = []string{EnforcePods}
	}
	orDuration(&n.FileCheckFrequency, 20*time.Second)
	orDuration(&n.HTTPCheckFrequency, 20*time.Second)
	orDefault(&n.ConfigMapAndSecretChangeDetectionStrategy, StrategyWatch)
	gates, _ := features.New(n.FeatureGates) // validateFeatures lists the faults
	if gates.Enabled(features.KubeletCrashLoopBackOffMax) {
		orDuration(&n.CrashLoopBackOff.MaxContainerRestartPeriod, 5*time.Minute)
	}
	if gates.Enabled(features.KubeletEnsureSecretPulledImages) {
		orDefault(&n.ImagePullCredentialsVerificationPolicy, "NeverVerifyPreloadedImages")
	}
}

func setEvictionDefaults(n *NodeSettings) {
	orPointer(&n.MergeDefaultEvictionSettings, false)
	defaults := map[string]string{"memory.available": "100Mi", "nodefs.available": "10%", "nodefs.inodesFree": "5%",
		"imagefs.available": "15%", "imagefs.inodesFree": "5%"}
	switch {
	case n.EvictionHard == nil:
		n.EvictionHard = defaults
	case *n.MergeDefaultEvictionSettings:
		maps.Copy(defaults, n.EvictionHard)
		n.EvictionHard = defaults
	}
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func orPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}

func orDuration(field *metav1.Duration, value time.Duration) { orDefault(&field.Duration, value) }

// resolvePaths makes the paths of this process's files absolute. Paths on a machine are absolute
// already.
func (c *BowlineConfiguration) resolvePaths(dir string) {
	abs := func(p *string) {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	abs(&c.Kubeconfig)
	c.NodeSettings.resolvePaths(abs)
	for i := range c.Hosts {
		h := &c.Hosts[i]
		abs(&h.Kubeconfig)
		abs(&h.Server.TLSCertFile)
		abs(&h.Server.TLSPrivateKeyFile)
		for _, file := range []*string{&h.SSH.IdentityFile, &h.SSH.CertificateFile, &h.SSH.PassphraseFile, &h.SSH.AgentSocket, &h.SSH.ConfigFile} {
			abs(file)
		}
		if h.SSH.Secret != nil {
			abs(&h.SSH.Secret.Kubeconfig)
		}
		for j := range h.SSH.KnownHosts {
			abs(&h.SSH.KnownHosts[j])
		}
		h.NodeSettings.resolvePaths(abs)
	}
}

func (n *NodeSettings) resolvePaths(abs func(*string)) {
	abs(&n.Authentication.X509.ClientCAFile)
	abs(&n.Identity.BootstrapKubeconfig)
	abs(&n.Identity.CertificateDirectory)
	abs(&n.ImageCredentialProviderConfig)
	abs(&n.ImageCredentialProviderBinDir)
}

// mergeTaints appends the host's taints to the configuration's. A host's taint replaces one with
// the same key and effect.
func mergeTaints(all, own []v1.Taint) []v1.Taint {
	var out []v1.Taint
	for _, a := range all {
		replaced := false
		for _, o := range own {
			replaced = replaced || o.MatchTaint(&a)
		}
		if !replaced {
			out = append(out, a)
		}
	}
	return append(out, own...)
}

// Remote reports whether the host is remote.
func (h *Host) Remote() bool { return strings.HasPrefix(h.Endpoint, "ssh://") }

// Exposed reports whether the remote host's sshd listens for the node.
func (h *Host) Exposed() bool { return h.Remote() && h.KubeletExposure == ExposureHost }

// ImageSocketPath is the path of the image service's socket on the host; empty: it is at SocketPath.
func (h *Host) ImageSocketPath() string { return strings.TrimPrefix(h.ImageServiceEndpoint, "unix://") }

// SocketPath is the endpoint's path on the host.
func (h *Host) SocketPath() string {
	if u, err := endpoint.Parse(h.Endpoint); err == nil && h.Remote() {
		return u.Socket
	}
	return strings.TrimPrefix(h.Endpoint, "unix://")
}
