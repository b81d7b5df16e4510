// Package config reads a BowlineConfiguration: strictly, with defaults, and with
// every mistake listed at once. Only cmd, and what gives it hosts to drive, imports it.
package config

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// The one version and kind that there is.
const (
	APIVersion = "bowline.io/v1alpha1"
	Kind       = "BowlineConfiguration"
)

// BowlineConfiguration is one process: the hosts it drives and how their nodes
// behave. Fields that have the kubelet's meaning have the kubelet's name and
// default (KubeletConfiguration v1beta1), but where the comment says otherwise.
type BowlineConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// Kubeconfig is the file with the node's credential, for hosts that name none
	// of their own. A relative path is relative to the configuration file.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// RegisterWithTaints are set on every new node, beside the host's own taints.
	RegisterWithTaints []v1.Taint `json:"registerWithTaints,omitempty"`

	// NodeSettings are for all hosts; a host's own value replaces the whole field.
	NodeSettings `json:",inline"`

	// Hosts are the machines, one node each.
	Hosts []Host `json:"hosts,omitempty"`
	// HostObjects adds the machines that the cluster's Host objects name
	// (docs/hosts.md); none are looked for by default.
	HostObjects *HostObjects `json:"hostObjects,omitempty"`
}

// HostObjects are Host objects of a cluster as a source of hosts.
type HostObjects struct {
	// Namespace is Bowline's own, where the Secrets are that the objects name.
	Namespace string `json:"namespace,omitempty"`
	// Kubeconfig is of the account that follows the objects, reads those Secrets and
	// drains nodes; that of the pod which this process runs in by default.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Template has what a Host object does not say of its host. {nodeName} stands for the
	// node's name in kubeconfig, providerID, server.tlsCertFile and server.tlsPrivateKeyFile.
	Template Host `json:"template,omitempty"`
	// Replicas shares the objects out among all processes that have this set and follow
	// the same objects, by Leases in Namespace; one process has them all by default.
	Replicas *Replicas `json:"replicas,omitempty"`
	// AllowLocal takes Host objects whose endpoint is a socket of the machine that this
	// process runs on: who may make Hosts is root there then. It is false by default, and
	// of no use beside Replicas.
	AllowLocal bool `json:"allowLocal,omitempty"`
}

// Replicas are the processes that share the Host objects of a cluster.
type Replicas struct {
	// Name tells this process from the others; $POD_NAME, else this machine's host name
	// by default.
	Name string `json:"name,omitempty"`
}

// Host is one machine and the node that it becomes. After Load its NodeSettings
// are complete: the host's value, else the configuration's, else the default.
type Host struct {
	// Name is how logs and messages call the host; NodeName, else the host that
	// Endpoint names, else "local", by default.
	Name string `json:"name,omitempty"`
	// Endpoint is the CRI socket: unix:///path or a bare absolute path on this
	// machine, ssh://user@host[:port]/path on a far one;
	// unix:///run/containerd/containerd.sock by default. Load makes it a URL.
	Endpoint string `json:"endpoint,omitempty"`
	// SSH is how to log in where Endpoint is ssh://.
	SSH SSH `json:"ssh,omitempty"`
	// LinkGrace is how long the link to a far machine may be down before its node
	// turns NotReady; 40s by default, as a kubelet's silence would. While the link
	// is down the node takes no new pods.
	LinkGrace metav1.Duration `json:"linkGrace,omitempty"`
	// NodeName is the name of the Node; the machine's host name in lower case if empty.
	NodeName string `json:"nodeName,omitempty"`
	// Kubeconfig replaces the configuration's.
	Kubeconfig string `json:"kubeconfig,omitempty"`
	// Labels are set on the Node when it registers.
	Labels map[string]string `json:"labels,omitempty"`
	// Taints are set on the Node when it registers. After Load they include
	// RegisterWithTaints; of two with one key and effect the host's stands.
	Taints []v1.Taint `json:"taints,omitempty"`
	// ProviderID is set on the Node when it registers, such as bowline://box-1; none by
	// default. A cloud controller looks by it for the node among its own machines, and
	// leaves alone what bears another's; a node that has none it looks for by its name,
	// and deletes.
	ProviderID string `json:"providerID,omitempty"`
	// Policy is what the machine's owner allows.
	Policy Policy `json:"policy,omitempty"`
	// NodeIP is the machine's address, or an IPv4 and an IPv6 address with a comma
	// between; found on the machine if empty. It is hostIP and the address of pods on
	// the host's network, and of the node itself where the machine is not far.
	NodeIP string `json:"nodeIP,omitempty"`
	// RootDirectory holds pods' volumes on the machine; /var/lib/kubelet by default.
	RootDirectory string `json:"rootDirectory,omitempty"`
	// AllowForeignPods lets Bowline drive a runtime that has pods of another
	// driver. They are never touched, and not accounted for in the node's capacity.
	AllowForeignPods bool `json:"allowForeignPods,omitempty"`
	// KubeletExposure is where the API server finds the node's logs and exec: process, at
	// an address of this process, or host, at the machine's, where its sshd listens for us
	// (GatewayPorts clientspecified); process by default. Where the machine is not far both
	// are the same.
	KubeletExposure string `json:"kubeletExposure,omitempty"`
	// Server is the node's own HTTPS endpoint.
	Server Server `json:"server,omitempty"`
	// HostObject is the name of the Host object that this was made of; of a file's
	// hosts it is empty.
	HostObject string `json:"-"`

	NodeSettings `json:",inline"`
}

// Values of Host.KubeletExposure.
const (
	ExposureProcess = "process"
	ExposureHost    = "host"
)

// SSH logs in to a far machine. Paths are of files of this process; they are read
// anew for each connection.
type SSH struct {
	// IdentityFile is a private key; CertificateFile an OpenSSH user certificate for
	// it, IdentityFile-cert.pub by default; PassphraseFile what decrypts it.
	IdentityFile    string `json:"identityFile,omitempty"`
	CertificateFile string `json:"certificateFile,omitempty"`
	PassphraseFile  string `json:"passphraseFile,omitempty"`
	// Secret holds the key, in place of a file and an agent.
	Secret *SSHSecret `json:"secret,omitempty"`
	// AgentSocket is the socket of an ssh-agent, whose keys are offered as well.
	AgentSocket string `json:"agentSocket,omitempty"`
	// HostKeys pin the machine's host keys, "ssh-ed25519 AAAA…" or "SHA256:…";
	// KnownHosts are known_hosts files. A key that either knows is taken, no other.
	HostKeys   []string `json:"hostKeys,omitempty"`
	KnownHosts []string `json:"knownHosts,omitempty"`
	// ConfigFile is an ssh_config, of which HostName, User, Port, IdentityFile,
	// CertificateFile, ProxyJump and the like are honoured; none by default.
	ConfigFile string `json:"configFile,omitempty"`
	// ProxyJump is the way to the machine, [user@]host[:port] with commas between.
	ProxyJump string `json:"proxyJump,omitempty"`
	// Jumps are the way to the machine with the host keys of each jump, in place of
	// ProxyJump; the first is dialled first. The login is that of the machine.
	Jumps []SSHJump `json:"jumps,omitempty"`
}

// SSHJump is a machine on the way to another.
type SSHJump struct {
	// User to log in as.
	User string `json:"user,omitempty"`
	// Address is a name or an IP address, as the jump before resolves it.
	Address string `json:"address,omitempty"`
	// Port of its sshd; 22 by default.
	Port int32 `json:"port,omitempty"`
	// HostKeys pin the jump's host keys: "ssh-ed25519 AAAA…" or "SHA256:…". No other key
	// is taken, and knownHosts do not count.
	HostKeys []string `json:"hostKeys,omitempty"`
}

// Way are jumps as they are dialled.
func Way(jumps []SSHJump) []endpoint.Jump {
	var way []endpoint.Jump
	for _, j := range jumps {
		way = append(way, endpoint.Jump{User: j.User, Address: j.Address, Port: int(j.Port), HostKeys: j.HostKeys})
	}
	return way
}

// SSHSecret names a Secret of type kubernetes.io/ssh-auth: its key ssh-privatekey is
// the private key, passphrase what decrypts it, and ssh-publickey-cert an OpenSSH user
// certificate for it; the last two may be missing. It is read at each connection; while
// the API server does not answer, what was read before serves.
type SSHSecret struct {
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name,omitempty"`
	// Kubeconfig is of an account that may get the Secret, which a node may not; the
	// host's own by default.
	Kubeconfig string `json:"kubeconfig,omitempty"`
}

// Server is where the API server reaches the node.
type Server struct {
	// Address to listen on; 0.0.0.0 by default.
	Address string `json:"address,omitempty"`
	// Port to listen on; 10250 by default, and any free one where the machine is far and
	// kubeletExposure process: many far machines have one process. With kubeletExposure
	// host it is the machine's port.
	Port int32 `json:"port,omitempty"`
	// PublishedAddress is the address by which the API server reaches this process,
	// where the machine is far; Address, or else the one with this machine's default
	// route, by default.
	PublishedAddress string `json:"publishedAddress,omitempty"`
	// TLSCertFile and TLSPrivateKeyFile are given together; a certificate of its
	// own signing serves where neither is.
	TLSCertFile       string `json:"tlsCertFile,omitempty"`
	TLSPrivateKeyFile string `json:"tlsPrivateKeyFile,omitempty"`
}

// Policy of the machine's owner. A pod beyond it is rejected: it fails with the
// reason, and nothing of it is started. Pods that run when a policy becomes stricter
// go on until they end.
type Policy struct {
	// AllowPrivileged containers, and what amounts to it: capabilities beyond a
	// runtime's default ones, hostPID, hostIPC, an unmasked /proc, AppArmor or SELinux
	// taken away; true by default.
	AllowPrivileged *bool `json:"allowPrivileged,omitempty"`
	// AllowHostPath volumes; true by default.
	AllowHostPath *bool `json:"allowHostPath,omitempty"`
	// AllowHostNetwork, and ports of the machine (hostPort); true by default.
	AllowHostNetwork *bool `json:"allowHostNetwork,omitempty"`
	// AllowNFS volumes, of pods and of persistent volumes: the machine itself mounts them,
	// as root, from whatever server they name; true by default.
	AllowNFS *bool `json:"allowNFS,omitempty"`
}

// NodeSettings are what a configuration says for all hosts or a host for itself.
type NodeSettings struct {
	// PodLogsDirectory on the machine; /var/log/pods by default.
	PodLogsDirectory string `json:"podLogsDirectory,omitempty"`
	// MaxPods that the node takes; 110 by default.
	MaxPods int32 `json:"maxPods,omitempty"`
	// PodPidsLimit of each pod; -1, no limit, by default.
	PodPidsLimit *int64 `json:"podPidsLimit,omitempty"`
	// CPUCFSQuota enforces CPU limits; true by default.
	CPUCFSQuota *bool `json:"cpuCFSQuota,omitempty"`
	// CPUCFSQuotaPeriod is the period over which the kernel enforces CPU limits, between
	// 1ms and 1s; 100ms by default.
	CPUCFSQuotaPeriod metav1.Duration `json:"cpuCFSQuotaPeriod,omitempty"`
	// SingleProcessOOMKill kills only the process that ran out of memory, and not its
	// whole container; false by default. Cgroup version 1 has no other way.
	SingleProcessOOMKill *bool `json:"singleProcessOOMKill,omitempty"`
	// SeccompDefault gives containers that name no seccomp profile the runtime's default
	// profile instead of none; false by default.
	SeccompDefault *bool `json:"seccompDefault,omitempty"`
	// FailSwapOn refuses a machine on which swap is on; true by default. Where it is
	// false, containers get no swap.
	FailSwapOn *bool `json:"failSwapOn,omitempty"`
	// CgroupDriver is cgroupfs or systemd; what the runtime reports if empty.
	CgroupDriver string `json:"cgroupDriver,omitempty"`
	// CgroupRoot is the cgroup above the pods' ones; "/" by default.
	CgroupRoot string `json:"cgroupRoot,omitempty"`

	// ClusterDNS are the addresses of the cluster's DNS servers; those of the Service
	// kube-system/kube-dns where it is not set. An empty list means none.
	ClusterDNS []string `json:"clusterDNS,omitempty"`
	// ClusterDomain is searched by pods; cluster.local by default (the kubelet's is empty).
	ClusterDomain string `json:"clusterDomain,omitempty"`
	// ResolvConf on the machine is what pods' resolv.conf begins with;
	// /etc/resolv.conf by default, nothing if it is set to "".
	ResolvConf *string `json:"resolvConf,omitempty"`

	// SyncFrequency is how often a pod's configMaps, secrets and tokens are looked
	// at again even if no change was heard of (up to half as long again is added,
	// so that pods spread); 1m by default.
	SyncFrequency metav1.Duration `json:"syncFrequency,omitempty"`
	// NodeStatusReportFrequency is how often an unchanged status is sent; 5m by default.
	NodeStatusReportFrequency metav1.Duration `json:"nodeStatusReportFrequency,omitempty"`
	// NodeLeaseDurationSeconds is what the lease promises, renewed at a quarter of
	// it; 40 by default.
	NodeLeaseDurationSeconds int32 `json:"nodeLeaseDurationSeconds,omitempty"`

	// SerializeImagePulls pulls one image at a time; false by default (the
	// kubelet's is true).
	SerializeImagePulls *bool `json:"serializeImagePulls,omitempty"`
	// MaxParallelImagePulls limits pulls at a time; no limit by default.
	MaxParallelImagePulls *int32 `json:"maxParallelImagePulls,omitempty"`
	// ImagePullCredentialsVerificationPolicy says of which images that are on the
	// machine a pod has to show that its credentials could pull them: NeverVerify,
	// NeverVerifyPreloadedImages (all that this node pulled; the default),
	// NeverVerifyAllowlistedImages, AlwaysVerify.
	ImagePullCredentialsVerificationPolicy string `json:"imagePullCredentialsVerificationPolicy,omitempty"`
	// PreloadedImagesVerificationAllowlist for NeverVerifyAllowlistedImages: names
	// without tag and digest; one that ends in /* stands for all that begin so.
	PreloadedImagesVerificationAllowlist []string `json:"preloadedImagesVerificationAllowlist,omitempty"`

	// SystemReserved and KubeReserved are taken from the node's capacity, by cpu,
	// memory, ephemeral-storage; beside them goes what EvictionHard holds back of
	// memory and of the disk.
	SystemReserved map[string]string `json:"systemReserved,omitempty"`
	KubeReserved   map[string]string `json:"kubeReserved,omitempty"`

	// Identity is how the node comes by its credential.
	Identity Identity `json:"identity,omitempty"`
	// ServerTLSBootstrap asks the cluster to sign the node's serving certificate
	// (kubernetes.io/kubelet-serving), and renews it; false by default. Until the
	// request is approved a certificate of the node's own signing serves.
	ServerTLSBootstrap *bool `json:"serverTLSBootstrap,omitempty"`

	// Authentication and Authorization of requests to the node's endpoint.
	Authentication Authentication `json:"authentication,omitempty"`
	Authorization  Authorization  `json:"authorization,omitempty"`

	// Container logs.

	// ContainerLogMaxSize is the size at which a container's log is rotated; 10Mi by
	// default, and a negative one rotates none.
	ContainerLogMaxSize string `json:"containerLogMaxSize,omitempty"`
	// ContainerLogMaxFiles is how many log files a container has at most, with the one
	// that is written to; 5 by default.
	ContainerLogMaxFiles *int32 `json:"containerLogMaxFiles,omitempty"`
	// ContainerLogMaxWorkers is how many logs are rotated at a time; 1 by default.
	ContainerLogMaxWorkers *int32 `json:"containerLogMaxWorkers,omitempty"`
	// ContainerLogMonitorInterval is how often the sizes of the logs are looked at; 10s
	// by default.
	ContainerLogMonitorInterval metav1.Duration `json:"containerLogMonitorInterval,omitempty"`

	// Control groups.

	// EnforceNodeAllocatable limits the cgroup above all pods to what is allocatable but
	// for the eviction thresholds (pods), the default, or to the machine's capacity (none).
	EnforceNodeAllocatable []string `json:"enforceNodeAllocatable,omitempty"`

	// Static pods, which run whether there is an API server or not.

	// StaticPodPath is a directory of pod manifests on the machine, or one manifest; none
	// by default. Files whose names begin with a dot are left out.
	StaticPodPath string `json:"staticPodPath,omitempty"`
	// FileCheckFrequency is how often StaticPodPath is looked at; 20s by default. Where
	// the machine is not far a change is seen at once.
	FileCheckFrequency metav1.Duration `json:"fileCheckFrequency,omitempty"`
	// StaticPodURL serves a pod manifest, or a list of them, to this process; none by
	// default. StaticPodURLHeader goes with each request.
	StaticPodURL       string              `json:"staticPodURL,omitempty"`
	StaticPodURLHeader map[string][]string `json:"staticPodURLHeader,omitempty"`
	// HTTPCheckFrequency is how often StaticPodURL is asked; 20s by default.
	HTTPCheckFrequency metav1.Duration `json:"httpCheckFrequency,omitempty"`

	// What pods read of the API server's configMaps and secrets.

	// ConfigMapAndSecretChangeDetectionStrategy is how the node learns what they hold: Watch,
	// the default, by a watch of each one that a pod names; Cache, by asking again when the
	// answer is as old as the cluster lets it be (the node's annotation
	// node.alpha.kubernetes.io/ttl, else a minute); Get, by asking each time.
	ConfigMapAndSecretChangeDetectionStrategy string `json:"configMapAndSecretChangeDetectionStrategy,omitempty"`

	// What the node refuses and gives up so that the machine stays well.

	// AllowedUnsafeSysctls are names of kernel parameters, or beginnings of them with a
	// star at the end (net.core.*), that pods may set beside the safe ones; none by default.
	AllowedUnsafeSysctls []string `json:"allowedUnsafeSysctls,omitempty"`
	// ImageGCHighThresholdPercent of the disk that holds images is where unused ones begin
	// to be removed, ImageGCLowThresholdPercent where this ends; 85 and 80 by default. With
	// 100 none is removed but for its age.
	ImageGCHighThresholdPercent *int32 `json:"imageGCHighThresholdPercent,omitempty"`
	ImageGCLowThresholdPercent  *int32 `json:"imageGCLowThresholdPercent,omitempty"`
	// ImageMinimumGCAge is how long an image stays at least; 2m by default.
	// ImageMaximumGCAge is how long it stays unused at most; 0, for ever, by default.
	ImageMinimumGCAge metav1.Duration `json:"imageMinimumGCAge,omitempty"`
	ImageMaximumGCAge metav1.Duration `json:"imageMaximumGCAge,omitempty"`

	// EvictionHard are the amounts below which pods are evicted at once, by signal
	// (memory.available, nodefs.available, nodefs.inodesFree, imagefs.available,
	// imagefs.inodesFree, pid.available), an amount or a percentage each; by default
	// memory.available 100Mi, nodefs.available 10%, nodefs.inodesFree 5%,
	// imagefs.available 15%, imagefs.inodesFree 5%. What is not named among some that are
	// is not looked at.
	EvictionHard map[string]string `json:"evictionHard,omitempty"`
	// EvictionSoft are those below which pods are evicted after EvictionSoftGracePeriod of
	// the same signal, with a grace of at most EvictionMaxPodGracePeriod seconds; none by
	// default.
	EvictionSoft              map[string]string `json:"evictionSoft,omitempty"`
	EvictionSoftGracePeriod   map[string]string `json:"evictionSoftGracePeriod,omitempty"`
	EvictionMaxPodGracePeriod int32             `json:"evictionMaxPodGracePeriod,omitempty"`
	// EvictionMinimumReclaim is how much more than its threshold a signal has to have
	// before it counts as well again; nothing by default.
	EvictionMinimumReclaim map[string]string `json:"evictionMinimumReclaim,omitempty"`
	// EvictionPressureTransitionPeriod is how long a condition stays after its cause has
	// gone; 5m by default.
	EvictionPressureTransitionPeriod metav1.Duration `json:"evictionPressureTransitionPeriod,omitempty"`

	// What happens before the machine goes down.

	// ShutdownGracePeriod is how long a shutdown of the machine waits, by a delay inhibitor
	// of its systemd-logind, until its pods have ended; ShutdownGracePeriodCriticalPods is
	// the last part of it, which critical pods have for themselves. 0, not at all, by
	// default.
	ShutdownGracePeriod             metav1.Duration `json:"shutdownGracePeriod,omitempty"`
	ShutdownGracePeriodCriticalPods metav1.Duration `json:"shutdownGracePeriodCriticalPods,omitempty"`
	// ShutdownGracePeriodByPodPriority says the same by the priorities of pods, instead of
	// the two; none by default.
	ShutdownGracePeriodByPodPriority []ShutdownGracePeriodByPodPriority `json:"shutdownGracePeriodByPodPriority,omitempty"`

	// Credential providers, which are programs that run beside this process. A Host object
	// cannot name any: who may make one could have Bowline run what they please.

	// ImageCredentialProviderConfig is a CredentialProviderConfig (kubelet.config.k8s.io/v1),
	// a file or a directory of them, and ImageCredentialProviderBinDir the directory of the
	// programs that it names; none by default. They are the kubelet's flags of these names.
	ImageCredentialProviderConfig string `json:"imageCredentialProviderConfig,omitempty"`
	ImageCredentialProviderBinDir string `json:"imageCredentialProviderBinDir,omitempty"`
}

// ShutdownGracePeriodByPodPriority is the time of the pods whose priority is at least
// this one, and less than that of the next entry.
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
