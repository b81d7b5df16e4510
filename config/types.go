// Package config reads a BowlineConfiguration: strictly, with defaults, and reporting all mistakes
// at once. Only cmd and the packages that provide and run hosts (hosts, pool) import it.
package config

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// The only supported version and kind.
const (
	APIVersion = "bowline.io/v1alpha1"
	Kind       = "BowlineConfiguration"
)

// BowlineConfiguration configures one process: the hosts it manages and how their nodes behave.
// Fields with the kubelet's meaning have the kubelet's name and default (KubeletConfiguration
// v1beta1), unless the comment says otherwise.
type BowlineConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// Kubeconfig is the file with the node's credential, for hosts that do not set their own. A
	// relative path is relative to the configuration file.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Logging configures the log of the process. A flag of the log that is given wins.
	Logging *Logging `json:"logging,omitempty"`
	// Tracing sends traces of the starts of pods to an OpenTelemetry collector; off by default, and
	// while samplingRatePerMillion is 0.
	Tracing *tracingapi.TracingConfiguration `json:"tracing,omitempty"`

	// RegisterWithTaints are set on every new node, in addition to the host's own taints.
	RegisterWithTaints []v1.Taint `json:"registerWithTaints,omitempty"`

	// NodeSettings apply to all hosts; a field that a host sets replaces the whole field.
	NodeSettings `json:",inline"`

	// Hosts are the machines; each becomes one node.
	Hosts []Host `json:"hosts,omitempty"`
	// HostObjects adds the machines of the cluster's Host objects (docs/hosts.md); by default
	// Bowline does not read them.
	HostObjects *HostObjects `json:"hostObjects,omitempty"`
}

// HostObjects configures the Host objects of a cluster as a source of hosts.
type HostObjects struct {
	// Namespace is Bowline's own, which has the Secrets that the objects name.
	Namespace string `json:"namespace,omitempty"`
	// Kubeconfig of the account that watches the objects, reads those Secrets and drains nodes; by
	// default the service account of the pod that this process runs in.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Template has the settings that a Host object does not contain. In kubeconfig, providerID,
	// server.tlsCertFile and server.tlsPrivateKeyFile, {nodeName} is replaced with the node's name.
	Template Host `json:"template,omitempty"`
	// Replicas shares the objects among all processes that set this and watch the same objects, by
	// Leases in Namespace. By default one process has all of them.
	Replicas *Replicas `json:"replicas,omitempty"`
	// AllowLocal accepts Host objects whose endpoint is a socket of the machine that this process
	// runs on. Then anyone who may create Hosts is root on that machine. False by default; not
	// allowed together with Replicas.
	AllowLocal bool `json:"allowLocal,omitempty"`
}

// Replicas configures the processes that share the Host objects of a cluster.
type Replicas struct {
	// Name is unique among these processes; by default $POD_NAME, else this machine's hostname.
	Name string `json:"name,omitempty"`
}

// Host is one machine and the node that it becomes. After Load its NodeSettings are complete: the
// host's value, else the configuration's, else the default.
type Host struct {
	// Name identifies the host in logs and messages; by default NodeName, else the host in
	// Endpoint, else "local".
	Name string `json:"name,omitempty"`
	// Endpoint is the CRI socket: unix:///path or a bare absolute path locally,
	// ssh://user@host[:port]/path remotely; unix:///run/containerd/containerd.sock by default. Load
	// makes it a URL.
	Endpoint string `json:"endpoint,omitempty"`
	// ImageServiceEndpoint is the socket of the CRI's image service, if that is not at Endpoint:
	// unix:///path or a bare absolute path, on the same host.
	ImageServiceEndpoint string `json:"imageServiceEndpoint,omitempty"`
	// SSH is how to log in if Endpoint is ssh://.
	SSH SSH `json:"ssh,omitempty"`
	// LinkGrace is how long the link to a remote host may be down before its node becomes NotReady;
	// by default 40s, like a kubelet that stops reporting. While the link is down the node accepts
	// no new pods.
	LinkGrace metav1.Duration `json:"linkGrace,omitempty"`
	// NodeName is the name of the Node; by default the machine's hostname in lower case.
	NodeName string `json:"nodeName,omitempty"`
	// Kubeconfig replaces the configuration's.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Labels are set on the Node when it registers.
	Labels map[string]string `json:"labels,omitempty"`
	// Taints are set on the Node when it registers. After Load they include RegisterWithTaints; a
	// host's taint replaces one with the same key and effect.
	Taints []v1.Taint `json:"taints,omitempty"`
	// ProviderID is set on the Node when it registers, for example bowline://box-1; none by
	// default. A cloud controller looks up the node among its machines by it, and ignores nodes
	// with the ID of another provider. A node without one it looks up by name, and deletes if it
	// finds none.
	ProviderID string `json:"providerID,omitempty"`
	// Policy is what the machine's owner allows.
	Policy Policy `json:"policy,omitempty"`
	// NodeIP is the machine's address, or an IPv4 and an IPv6 address separated by a comma; by
	// default Bowline finds it on the host. It is the hostIP and the address of pods on the host
	// network, and also the node's address on a local host and with kubeletExposure host.
	NodeIP string `json:"nodeIP,omitempty"`
	// RootDirectory has the pods' volumes on the host; /var/lib/kubelet by default.
	RootDirectory string `json:"rootDirectory,omitempty"`
	// AllowForeignPods allows a runtime that has pods of another agent. Bowline never touches
	// those, and does not account for them in the node's capacity.
	AllowForeignPods bool `json:"allowForeignPods,omitempty"`
	// KubeletExposure is where the API server reaches the node for logs and exec: process, at an
	// address of this process (the default), or host, at the machine's address, where its sshd
	// listens for us (GatewayPorts clientspecified). On a local host both are the same.
	KubeletExposure string `json:"kubeletExposure,omitempty"`
	// Server is the node's own HTTPS endpoint.
	Server Server `json:"server,omitempty"`
	// HostObject is the name of the Host object that this host was made of; empty for hosts of a
	// file.
	HostObject string `json:"-"`

	NodeSettings `json:",inline"`
}

// Values of Host.KubeletExposure.
const (
	ExposureProcess = "process"
	ExposureHost    = "host"
)

// SSH is the login to a remote host. Paths are files of this process; they are re-read for each
// connection.
type SSH struct {
	// IdentityFile is a private key; CertificateFile an OpenSSH user certificate for it,
	// IdentityFile-cert.pub by default; PassphraseFile has its passphrase.
	IdentityFile    string `json:"identityFile,omitempty"`
	CertificateFile string `json:"certificateFile,omitempty"`
	PassphraseFile  string `json:"passphraseFile,omitempty"`
	// Secret has the key, instead of a file or an agent.
	Secret *SSHSecret `json:"secret,omitempty"`
	// AgentSocket is the socket of an ssh-agent, whose keys are offered as well.
	AgentSocket string `json:"agentSocket,omitempty"`
	// HostKeys pin the machine's host keys, "ssh-ed25519 AAAA…" or "SHA256:…"; KnownHosts are
	// known_hosts files. Only keys in either are accepted.
	HostKeys   []string `json:"hostKeys,omitempty"`
	KnownHosts []string `json:"knownHosts,omitempty"`
	// ConfigFile is an ssh_config, of which HostName, User, Port, IdentityFile, CertificateFile,
	// ProxyJump and similar options are used; none by default.
	ConfigFile string `json:"configFile,omitempty"`
	// ProxyJump is the jumps to the machine, a comma-separated list of [user@]host[:port].
	ProxyJump string `json:"proxyJump,omitempty"`
	// Jumps is the jumps to the machine in the order of dialling, with the host keys of each,
	// instead of ProxyJump. They use the login of the machine.
	Jumps []SSHJump `json:"jumps,omitempty"`
}

// SSHJump is a jump host.
type SSHJump struct {
	// User to log in as.
	User string `json:"user,omitempty"`
	// Address is a name or an IP address, as the previous jump resolves it.
	Address string `json:"address,omitempty"`
	// Port of its sshd; 22 by default.
	Port int32 `json:"port,omitempty"`
	// HostKeys pin the jump's host keys: "ssh-ed25519 AAAA…" or "SHA256:…". No other key is
	// accepted; knownHosts is not used.
	HostKeys []string `json:"hostKeys,omitempty"`
}

// Way converts jumps, in the order of dialling.
func Way(jumps []SSHJump) []endpoint.Jump {
	var way []endpoint.Jump
	for _, j := range jumps {
		way = append(way, endpoint.Jump{User: j.User, Address: j.Address, Port: int(j.Port), HostKeys: j.HostKeys})
	}
	return way
}

// SSHSecret names a Secret of type kubernetes.io/ssh-auth: ssh-privatekey is the private key,
// passphrase its passphrase, and ssh-publickey-cert an OpenSSH user certificate for it; the last
// two are optional. It is read for each connection. While the API server does not answer, the last
// content is used.
type SSHSecret struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Kubeconfig of an account that may get the Secret, which a node may not; by default the host's
	// own.
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

// Server is where the API server reaches the node.
type Server struct {
	// Address to listen on; 0.0.0.0 by default.
	Address string `json:"address,omitempty"`
	// Port to listen on; 10250 by default. For remote hosts with kubeletExposure process the
	// default is any free port, because one process serves many of them. With kubeletExposure host
	// it is a port of the machine.
	Port int32 `json:"port,omitempty"`
	// PublishedAddress is the address at which the API server reaches this process for a remote
	// host; by default Address, or else the one with this machine's default route.
	PublishedAddress string `json:"publishedAddress,omitempty"`
	// TLSCertFile and TLSPrivateKeyFile are set together; without them a self-signed certificate is
	// used.
	TLSCertFile       string `json:"tlsCertFile,omitempty"`
	TLSPrivateKeyFile string `json:"tlsPrivateKeyFile,omitempty"`
}

// Policy of the machine's owner. A pod that violates it is rejected: it fails with the reason, and
// nothing of it is started. Running pods continue when a policy becomes stricter.
type Policy struct {
	// AllowPrivileged containers, and what is equivalent: capabilities beyond a runtime's default
	// ones, hostPID, hostIPC, an unmasked /proc, disabled AppArmor or SELinux; true by default.
	AllowPrivileged *bool `json:"allowPrivileged,omitempty"`
	// AllowHostPath volumes; true by default.
	AllowHostPath *bool `json:"allowHostPath,omitempty"`
	// AllowHostNetwork, and ports of the machine (hostPort); true by default.
	AllowHostNetwork *bool `json:"allowHostNetwork,omitempty"`
	// AllowNFS volumes, of pods and of persistent volumes: the machine itself mounts them, as root,
	// from any server that they name; true by default.
	AllowNFS *bool `json:"allowNFS,omitempty"`
}

// NodeSettings can be set for all hosts, or for one host.
type NodeSettings struct {
	// PodLogsDirectory on the host; /var/log/pods by default.
	PodLogsDirectory string `json:"podLogsDirectory,omitempty"`
	// MaxPods that the node accepts; 110 by default.
	MaxPods int32 `json:"maxPods,omitempty"`
	// PodsPerCore limits the node's pods to this number for each CPU of the machine, if that is less
	// than MaxPods; 0, no such limit, by default.
	PodsPerCore int32 `json:"podsPerCore,omitempty"`
	// PodPidsLimit of each pod; -1, no limit, by default.
	PodPidsLimit *int64 `json:"podPidsLimit,omitempty"`
	// CPUCFSQuota enforces CPU limits; true by default.
	CPUCFSQuota *bool `json:"cpuCFSQuota,omitempty"`
	// CPUCFSQuotaPeriod is the period over which the kernel enforces CPU limits, between
	// 1ms and 1s; 100ms by default.
	CPUCFSQuotaPeriod metav1.Duration `json:"cpuCFSQuotaPeriod,omitempty"`
	// SingleProcessOOMKill kills only the process that ran out of memory, instead of its whole
	// container; false by default. Cgroup version 1 always kills only the process.
	SingleProcessOOMKill *bool `json:"singleProcessOOMKill,omitempty"`
	// UserNamespaces configures pods with hostUsers: false.
	UserNamespaces UserNamespaces `json:"userNamespaces,omitempty"`
	// SeccompDefault gives containers without a seccomp profile the runtime's default profile
	// instead of none; false by default.
	SeccompDefault *bool `json:"seccompDefault,omitempty"`
	// FailSwapOn refuses a machine with swap on; true by default. If false, containers get no swap.
	FailSwapOn *bool `json:"failSwapOn,omitempty"`
	// CgroupDriver is cgroupfs or systemd; by default what the runtime reports.
	CgroupDriver string `json:"cgroupDriver,omitempty"`
	// CgroupRoot is the parent of the pods' cgroups; "/" by default.
	CgroupRoot string `json:"cgroupRoot,omitempty"`

	// ClusterDNS are the addresses of the cluster's DNS servers; by default those of the Service
	// kube-system/kube-dns, or of the one there with the label k8s-app=kube-dns. An empty list
	// means none.
	ClusterDNS []string `json:"clusterDNS,omitempty"`
	// ClusterDomain is a search domain of pods; cluster.local by default (the kubelet's is empty).
	ClusterDomain string `json:"clusterDomain,omitempty"`
	// ResolvConf on the host is the base of pods' resolv.conf; /etc/resolv.conf by default, no
	// file if it is set to "".
	ResolvConf *string `json:"resolvConf,omitempty"`

	// SyncFrequency is how often a pod's configMaps, secrets and tokens are checked even without a
	// notified change (plus up to half of it, so that pods spread); 1m by default.
	SyncFrequency metav1.Duration `json:"syncFrequency,omitempty"`
	// NodeStatusUpdateFrequency is how often the host and its runtime are asked for what the node's
	// status shows; 10s by default, and 1m for a remote host, where it costs a round trip and some
	// processes.
	NodeStatusUpdateFrequency metav1.Duration `json:"nodeStatusUpdateFrequency,omitempty"`
	// VolumeStatsAggPeriod is how long the measured size of a pod's volumes is used; 1m by default.
	// If it is negative, volumes are not measured.
	VolumeStatsAggPeriod metav1.Duration `json:"volumeStatsAggPeriod,omitempty"`
	// NodeStatusReportFrequency is how often an unchanged status is sent; 5m by default.
	NodeStatusReportFrequency metav1.Duration `json:"nodeStatusReportFrequency,omitempty"`
	// NodeStatusMaxImages is how many images the node's status lists, the largest first; 50 by
	// default. -1 means all of them.
	NodeStatusMaxImages *int32 `json:"nodeStatusMaxImages,omitempty"`
	// NodeLeaseDurationSeconds is the duration of the lease, renewed at a quarter of it; 40 by
	// default.
	NodeLeaseDurationSeconds int32 `json:"nodeLeaseDurationSeconds,omitempty"`

	// KubeAPIQPS and KubeAPIBurst limit the node's requests to the API server per second, and in a
	// burst; 50 and 100 by default. Its lease and its events do not count. A KubeAPIQPS of -1 means
	// no limit.
	KubeAPIQPS   *int32 `json:"kubeAPIQPS,omitempty"`
	KubeAPIBurst *int32 `json:"kubeAPIBurst,omitempty"`
	// EventRecordQPS and EventBurst limit its events in the same way; 50 and 100 by default. 0 means
	// no limit.
	EventRecordQPS *int32 `json:"eventRecordQPS,omitempty"`
	EventBurst     *int32 `json:"eventBurst,omitempty"`

	// RegistryPullQPS and RegistryBurst limit how many image pulls start per second, and in a burst;
	// 5 and 10 by default. 0 means no limit. A pull beyond the limit waits; with a kubelet it fails.
	RegistryPullQPS *int32 `json:"registryPullQPS,omitempty"`
	RegistryBurst   *int32 `json:"registryBurst,omitempty"`
	// SerializeImagePulls pulls one image at a time; false by default (the kubelet's is true).
	SerializeImagePulls *bool `json:"serializeImagePulls,omitempty"`
	// MaxParallelImagePulls limits concurrent pulls; no limit by default.
	MaxParallelImagePulls *int32 `json:"maxParallelImagePulls,omitempty"`
	// ImagePullCredentialsVerificationPolicy is for which images that are already on the host a
	// pod must prove that its credentials could pull them: NeverVerify, NeverVerifyPreloadedImages
	// (all that this node pulled; the default), NeverVerifyAllowlistedImages, AlwaysVerify.
	ImagePullCredentialsVerificationPolicy string `json:"imagePullCredentialsVerificationPolicy,omitempty"`
	// PreloadedImagesVerificationAllowlist for NeverVerifyAllowlistedImages: names without tag and
	// digest; a name that ends in /* is a prefix.
	PreloadedImagesVerificationAllowlist []string `json:"preloadedImagesVerificationAllowlist,omitempty"`

	// SystemReserved and KubeReserved are subtracted from the node's capacity (cpu, memory,
	// ephemeral-storage), in addition to the memory and disk thresholds of EvictionHard.
	SystemReserved map[string]string `json:"systemReserved,omitempty"`
	KubeReserved   map[string]string `json:"kubeReserved,omitempty"`

	// Identity is how the node gets its credential.
	Identity Identity `json:"identity,omitempty"`
	// ServerTLSBootstrap requests the node's serving certificate from the cluster
	// (kubernetes.io/kubelet-serving), and renews it; false by default. Until the request is
	// approved, a self-signed certificate is used.
	ServerTLSBootstrap *bool `json:"serverTLSBootstrap,omitempty"`

	// TLSMinVersion of the node's endpoint; VersionTLS12 (the default) or VersionTLS13.
	// TLSCipherSuites are the suites of TLS 1.2 by their IANA names; Go's defaults by default. The
	// suites of TLS 1.3 cannot be chosen.
	TLSMinVersion   string   `json:"tlsMinVersion,omitempty"`
	TLSCipherSuites []string `json:"tlsCipherSuites,omitempty"`
	// TLSCurvePreferences are the key exchanges by their numbers in Go's crypto/tls.CurveID, in any
	// order; Go's defaults by default.
	TLSCurvePreferences []int32 `json:"tlsCurvePreferences,omitempty"`
	// StreamingConnectionIdleTimeout is how long an exec, attach or port-forward may be idle; 4h by
	// default.
	StreamingConnectionIdleTimeout metav1.Duration `json:"streamingConnectionIdleTimeout,omitempty"`

	// Authentication and Authorization of requests to the node's endpoint.
	Authentication Authentication `json:"authentication,omitempty"`
	Authorization  Authorization  `json:"authorization,omitempty"`

	// CrashLoopBackOff limits the pauses between restarts of a container.
	CrashLoopBackOff CrashLoopBackOff `json:"crashLoopBackOff,omitempty"`

	// FeatureGates switch features of Kubernetes on or off, by the names of package features; by
	// default as the kubelet does.
	FeatureGates map[string]bool `json:"featureGates,omitempty"`

	// Container logs.

	// ContainerLogMaxSize is the size at which a container's log is rotated; 10Mi by default. A
	// negative size disables rotation.
	ContainerLogMaxSize string `json:"containerLogMaxSize,omitempty"`
	// ContainerLogMaxFiles is the maximum number of log files per container, including the current
	// one; 5 by default.
	ContainerLogMaxFiles *int32 `json:"containerLogMaxFiles,omitempty"`
	// ContainerLogMaxWorkers is how many logs are rotated at a time; 1 by default.
	ContainerLogMaxWorkers *int32 `json:"containerLogMaxWorkers,omitempty"`
	// ContainerLogMonitorInterval is how often the sizes of the logs are checked; 10s by default.
	ContainerLogMonitorInterval metav1.Duration `json:"containerLogMonitorInterval,omitempty"`

	// EnableSystemLogHandler serves the files below /var/log of the host at /logs/ of the node's
	// endpoint; true by default. EnableSystemLogQuery answers node log queries there (?query=);
	// false by default.
	EnableSystemLogHandler *bool `json:"enableSystemLogHandler,omitempty"`
	EnableSystemLogQuery   *bool `json:"enableSystemLogQuery,omitempty"`

	// Control groups.

	// EnforceNodeAllocatable limits the cgroup above all pods: to the machine's capacity minus
	// SystemReserved and KubeReserved (pods), the default, or to the capacity (none). Eviction
	// thresholds are not subtracted.
	EnforceNodeAllocatable []string `json:"enforceNodeAllocatable,omitempty"`

	// Static pods, which run with or without an API server.

	// StaticPodPath is a directory of pod manifests on the host, or one manifest; none by
	// default. Files whose names begin with a dot are ignored.
	StaticPodPath string `json:"staticPodPath,omitempty"`
	// FileCheckFrequency is how often StaticPodPath is checked; 20s by default. On a local host a
	// change is seen at once.
	FileCheckFrequency metav1.Duration `json:"fileCheckFrequency,omitempty"`
	// StaticPodURL is where this process fetches a pod manifest, or a list of them; none by
	// default. StaticPodURLHeader is sent with each request.
	StaticPodURL       string              `json:"staticPodURL,omitempty"`
	StaticPodURLHeader map[string][]string `json:"staticPodURLHeader,omitempty"`
	// HTTPCheckFrequency is how often StaticPodURL is fetched; 20s by default.
	HTTPCheckFrequency metav1.Duration `json:"httpCheckFrequency,omitempty"`

	// ConfigMaps and secrets that pods use.

	// ConfigMapAndSecretChangeDetectionStrategy is how the node learns of changes: Watch, the
	// default, by a watch of each object that a pod names; Cache, by a get when the cached object
	// is older than the cluster allows (the node's annotation node.alpha.kubernetes.io/ttl, else a
	// minute); Get, by a get each time.
	ConfigMapAndSecretChangeDetectionStrategy string `json:"configMapAndSecretChangeDetectionStrategy,omitempty"`

	// Limits that keep the machine healthy.

	// AllowedUnsafeSysctls are names of sysctls, or prefixes of them with a star at the end
	// (net.core.*), that pods may set in addition to the safe ones; none by default.
	AllowedUnsafeSysctls []string `json:"allowedUnsafeSysctls,omitempty"`
	// ImageGCHighThresholdPercent is the usage of the image disk at which removal of unused images
	// begins, ImageGCLowThresholdPercent the usage at which it ends; 85 and 80 by default. With 100
	// images are removed only because of their age.
	ImageGCHighThresholdPercent *int32 `json:"imageGCHighThresholdPercent,omitempty"`
	ImageGCLowThresholdPercent  *int32 `json:"imageGCLowThresholdPercent,omitempty"`
	// ImageMinimumGCAge is how long an image stays at least; 2m by default. ImageMaximumGCAge is
	// how long it stays unused at most; 0, forever, by default.
	ImageMinimumGCAge metav1.Duration `json:"imageMinimumGCAge,omitempty"`
	ImageMaximumGCAge metav1.Duration `json:"imageMaximumGCAge,omitempty"`

	// EvictionHard are the thresholds below which pods are evicted at once, by signal
	// (memory.available, nodefs.available, nodefs.inodesFree, imagefs.available,
	// imagefs.inodesFree, pid.available), each an amount or a percentage; by default
	// memory.available 100Mi, nodefs.available 10%, nodefs.inodesFree 5%, imagefs.available 15%,
	// imagefs.inodesFree 5%. If it is set, signals that are not in it have no threshold, unless
	// MergeDefaultEvictionSettings is true.
	EvictionHard map[string]string `json:"evictionHard,omitempty"`
	// MergeDefaultEvictionSettings keeps the default thresholds of the signals that are not in
	// EvictionHard; false by default. After Load they are in it.
	MergeDefaultEvictionSettings *bool `json:"mergeDefaultEvictionSettings,omitempty"`
	// EvictionSoft are the thresholds below which pods are evicted after EvictionSoftGracePeriod of
	// the same signal, with a grace period of at most EvictionMaxPodGracePeriod seconds; none by
	// default.
	EvictionSoft              map[string]string `json:"evictionSoft,omitempty"`
	EvictionSoftGracePeriod   map[string]string `json:"evictionSoftGracePeriod,omitempty"`
	EvictionMaxPodGracePeriod int32             `json:"evictionMaxPodGracePeriod,omitempty"`
	// EvictionMinimumReclaim is how far a signal must exceed its threshold before it counts as
	// resolved; nothing by default.
	EvictionMinimumReclaim map[string]string `json:"evictionMinimumReclaim,omitempty"`
	// EvictionPressureTransitionPeriod is how long a pressure condition stays after its cause is
	// gone; 5m by default.
	EvictionPressureTransitionPeriod metav1.Duration `json:"evictionPressureTransitionPeriod,omitempty"`

	// Shutdown of the machine.

	// ShutdownGracePeriod is how long a shutdown of the machine waits until its pods have ended, by
	// a delay inhibitor lock of its systemd-logind. ShutdownGracePeriodCriticalPods is the last
	// part of it, reserved for critical pods. 0, no waiting, by default.
	ShutdownGracePeriod             metav1.Duration `json:"shutdownGracePeriod,omitempty"`
	ShutdownGracePeriodCriticalPods metav1.Duration `json:"shutdownGracePeriodCriticalPods,omitempty"`
	// ShutdownGracePeriodByPodPriority sets the periods by pod priority, instead of the two fields
	// above; none by default.
	ShutdownGracePeriodByPodPriority []ShutdownGracePeriodByPodPriority `json:"shutdownGracePeriodByPodPriority,omitempty"`

	// Credential providers are programs that run next to this process. A Host object cannot name
	// any, because anyone who may create one could make Bowline run arbitrary programs.

	// ImageCredentialProviderConfig is a CredentialProviderConfig (kubelet.config.k8s.io/v1), a
	// file or a directory of them, and ImageCredentialProviderBinDir the directory of its programs;
	// none by default. They have the names of the kubelet's flags.
	ImageCredentialProviderConfig string `json:"imageCredentialProviderConfig,omitempty"`
	ImageCredentialProviderBinDir string `json:"imageCredentialProviderBinDir,omitempty"`
}

// UserNamespaces configures the user namespaces of pods.
type UserNamespaces struct {
	// IDsPerPod is how many user and group IDs of the host each pod gets, a multiple of 65536; 65536
	// by default. A pod that runs keeps what it has.
	IDsPerPod *int64 `json:"idsPerPod,omitempty"`
}

// CrashLoopBackOff configures the restarts of a container that ends again and again.
type CrashLoopBackOff struct {
	// MaxContainerRestartPeriod is the longest pause before a restart, between 1s and 300s; 5m by
	// default. It needs the feature gate KubeletCrashLoopBackOffMax.
	MaxContainerRestartPeriod metav1.Duration `json:"maxContainerRestartPeriod,omitempty"`
}

// ShutdownGracePeriodByPodPriority is the period of the pods with at least this priority, and less
// than that of the next entry.
type ShutdownGracePeriodByPodPriority struct {
	Priority                   int32 `json:"priority"`
	ShutdownGracePeriodSeconds int64 `json:"shutdownGracePeriodSeconds"`
}

// Values of EnforceNodeAllocatable.
const (
	EnforcePods = "pods"
	EnforceNone = "none"
)

// Values of ConfigMapAndSecretChangeDetectionStrategy.
const (
	StrategyWatch = "Watch"
	StrategyCache = "Cache"
	StrategyGet   = "Get"
)
