package v1alpha1

import (
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Host is a machine with a CRI runtime that Bowline makes a node.
//
// It is cluster-scoped, like its node: a user who may create a Host may run pods on a
// machine of their choice, under a node name of their choice. No right in a namespace
// gives that.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,categories=bowline,shortName=bhost
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`,description="whether the node is Ready"
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.nodeName`,description="the node of the host"
// +kubebuilder:printcolumn:name="Link",type=string,JSONPath=`.status.link.state`,description="Up, Down, or Local (no SSH link)"
// +kubebuilder:printcolumn:name="RTT",type=string,JSONPath=`.status.link.roundTrip`,description="the link's round trip, about"
// +kubebuilder:printcolumn:name="Pods",type=integer,JSONPath=`.status.pods`,description="pods that Bowline runs on the host"
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`,description="why the host is Ready, or is not"
// +kubebuilder:printcolumn:name="Endpoint",type=string,priority=1,JSONPath=`.spec.endpoint`,description="the runtime's socket on the host"
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,description="the reason in words"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Host struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the machine and the node that it becomes.
	Spec HostSpec `json:"spec"`
	// Status is what Bowline reports of both. The default keeps "helm --wait" from taking a Host that no
	// Bowline has read yet for a ready one.
	// +kubebuilder:default={conditions: {{type: "Ready", status: "Unknown", reason: "Pending", message: "Waiting for Bowline to read the Host", lastTransitionTime: "1970-01-01T00:00:00Z"}}}
	// +optional
	Status HostStatus `json:"status,omitempty"`
}

// HostList is a list of Hosts.
//
// +kubebuilder:object:root=true
type HostList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Host `json:"items"`
}

// HostSpec is the machine and the node that it becomes. Fields that a host of a
// BowlineConfiguration has too mean the same there.
//
// +kubebuilder:validation:XValidation:rule="!self.endpoint.startsWith('ssh://') || (has(self.hostKeys) && size(self.hostKeys) > 0)",message="hostKeys: pin the machine's host keys, or another machine could take its place; bowline host scan prints them"
// +kubebuilder:validation:XValidation:rule="self.endpoint.startsWith('ssh://') || !has(self.hostKeys) || size(self.hostKeys) == 0",message="hostKeys: the endpoint is not ssh://, leave them out"
// +kubebuilder:validation:XValidation:rule="self.endpoint.startsWith('ssh://') || !has(self.credentialsSecretRef)",message="credentialsSecretRef: the endpoint is not ssh://, leave it out"
// +kubebuilder:validation:XValidation:rule="self.endpoint.startsWith('ssh://') || !has(self.linkGrace)",message="linkGrace: the endpoint is not ssh://, there is no link"
// +kubebuilder:validation:XValidation:rule="self.endpoint.startsWith('ssh://') || !has(self.ssh)",message="ssh: the endpoint is not ssh://, leave it out"
// +kubebuilder:validation:XValidation:rule="has(self.nodeName) == has(oldSelf.nodeName) && (!has(self.nodeName) || self.nodeName == oldSelf.nodeName)",message="nodeName: a node cannot be renamed; delete the Host, which drains the node, and make another"
type HostSpec struct {
	// Endpoint is the CRI socket: ssh://user@host[:port]/path on a remote host;
	// unix:///path or an absolute path on the host that Bowline runs on.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule="self.startsWith('ssh://') || self.startsWith('unix:///') || self.startsWith('/')",message="write ssh://user@host/run/containerd/containerd.sock, or unix:///path of a socket beside Bowline"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('ssh://') || self.matches('^ssh://[^/]+/.+')",message="after ssh://user@host comes the socket's path on the machine, such as /run/containerd/containerd.sock"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('ssh://') || !self.matches('^ssh://[^/@]*:[^/@]*@')",message="there is a password in the endpoint: take it out, and name a Secret with a key in credentialsSecretRef"
	Endpoint string `json:"endpoint"`

	// CredentialsSecretRef names the Secret with the login key, in Bowline's own namespace.
	// Its type is kubernetes.io/ssh-auth; it has ssh-privatekey and, if needed, passphrase
	// and ssh-publickey-cert. Bowline reads it at each connection.
	// +optional
	CredentialsSecretRef *SecretRef `json:"credentialsSecretRef,omitempty"`

	// HostKeys pin the host keys: "ssh-ed25519 AAAA..." or "SHA256:...". Bowline accepts no
	// other key. Required for ssh.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^(SHA256:[A-Za-z0-9+/]{43}|[a-z0-9@.-]+ [A-Za-z0-9+/]+=*( .*)?)$')",message="a host key is \"ssh-ed25519 AAAA...\" or \"SHA256:...\", as bowline host scan prints it"
	HostKeys []string `json:"hostKeys,omitempty"`

	// SSH is how Bowline reaches the host if it cannot connect to it directly.
	// +optional
	SSH *HostSSH `json:"ssh,omitempty"`

	// NodeName is the name of the Node, by default that of the Host. It is immutable.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$')",message="a node's name has lower case letters, digits, '-' and '.', such as box-1"
	NodeName string `json:"nodeName,omitempty"`

	// Labels are set on the Node when it registers.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Labels map[string]string `json:"labels,omitempty"`

	// Taints are set on the Node when it registers, in addition to those of Bowline's configuration.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="self.all(t, t.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute'])",message="a taint's effect is NoSchedule, PreferNoSchedule or NoExecute"
	Taints []v1.Taint `json:"taints,omitempty"`

	// MaxPods is how many pods the node takes; by default that of Bowline's configuration,
	// else 110.
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=10000
	MaxPods *int32 `json:"maxPods,omitempty"`

	// Reserved is the part of the node's capacity that no pod gets, by cpu, memory and
	// ephemeral-storage: systemReserved of a BowlineConfiguration.
	// +optional
	// +kubebuilder:validation:MaxProperties=3
	// +kubebuilder:validation:XValidation:rule="self.all(k, k in ['cpu', 'memory', 'ephemeral-storage'])",message="what can be reserved: cpu, memory, ephemeral-storage"
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^[0-9]+([.][0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti)?$'))",message="an amount is such as 100m or 1Gi"
	Reserved map[string]Amount `json:"reserved,omitempty"`

	// LinkGrace is how long the link to the host may be down before its node turns
	// NotReady, at least 1s; 40s by default.
	// +optional
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:XValidation:rule="self.matches('^([0-9]+([.][0-9]+)?(ms|s|m|h))+$') && duration(self) >= duration('1s')",message="a duration of at least 1s, such as 40s or 2h"
	LinkGrace *metav1.Duration `json:"linkGrace,omitempty"`

	// KubeletExposure is where the API server reaches the node's logs and exec. process: at
	// an address and a port of Bowline. host: at the host's address, where its sshd listens
	// for Bowline (GatewayPorts clientspecified). On the host that Bowline runs on, both are
	// the same.
	// +optional
	// +kubebuilder:default=process
	// +kubebuilder:validation:Enum=process;host
	KubeletExposure KubeletExposure `json:"kubeletExposure,omitempty"`

	// NodeIP is the host's address, or an IPv4 and an IPv6 address separated by a comma; by
	// default what the host itself reports. It is the hostIP of pods, and with
	// kubeletExposure host also the node's address.
	// +optional
	// +kubebuilder:validation:MaxLength=96
	// +kubebuilder:validation:XValidation:rule="self.matches('^[0-9a-fA-F.:]+(,[0-9a-fA-F.:]+)?$')",message="an IP address, or one of IPv4 and one of IPv6, such as 10.0.0.7,fd00::7"
	NodeIP string `json:"nodeIP,omitempty"`

	// Policy is what the host's owner allows. Bowline rejects other pods, with the reason.
	// +optional
	Policy *Policy `json:"policy,omitempty"`

	// DeletionPolicy is what the deletion of the Host does with the node's pods. drain:
	// Bowline evicts them and leaves nothing on the host. detach: their containers keep
	// running there.
	// +optional
	// +kubebuilder:default=drain
	// +kubebuilder:validation:Enum=drain;detach
	DeletionPolicy DeletionPolicy `json:"deletionPolicy,omitempty"`
}

// Jumps returns the Host's jump hosts in the order in which Bowline dials them; none if
// Bowline's configuration says how it reaches the host.
func Jumps(h *Host) []Jump {
	if h.Spec.SSH == nil {
		return nil
	}
	return h.Spec.SSH.ProxyJump
}

// HostSSH is how Bowline reaches a host over SSH.
type HostSSH struct {
	// ProxyJump lists the jump hosts on the way, and replaces those of Bowline's
	// configuration. Bowline dials the first one, from there the next, and from the last one
	// the host. The key of credentialsSecretRef logs in at each of them.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	ProxyJump []Jump `json:"proxyJump,omitempty"`
}

// Jump is a jump host.
type Jump struct {
	// User to log in as.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule="self.matches('^[A-Za-z0-9_][A-Za-z0-9_.@+-]*$')",message="a user of the jump, such as root"
	User string `json:"user"`
	// Address is a name or an IP address (IPv6 without brackets). The previous jump host
	// resolves it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.matches('^([A-Za-z0-9_][A-Za-z0-9._-]*|[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*)$')",message="a name or an IP address; the user and the port have fields of their own"
	Address string `json:"address"`
	// Port of its sshd.
	// +optional
	// +kubebuilder:default=22
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
	// HostKeys pin the jump host's keys, like those of the host. Bowline accepts no other key.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=4096
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^(SHA256:[A-Za-z0-9+/]{43}|[a-z0-9@.-]+ [A-Za-z0-9+/]+=*( .*)?)$')",message="a host key is \"ssh-ed25519 AAAA...\" or \"SHA256:...\", as bowline host scan prints it"
	HostKeys []string `json:"hostKeys"`
}

// Amount of a resource, as a Quantity is written.
//
// +kubebuilder:validation:MaxLength=32
type Amount string

// SecretRef names a Secret in Bowline's own namespace.
type SecretRef struct {
	// Name of the Secret.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// KubeletExposure is where the API server reaches the node's logs and exec.
type KubeletExposure string

// The values of KubeletExposure.
const (
	ExposureProcess KubeletExposure = "process"
	ExposureHost    KubeletExposure = "host"
)

// DeletionPolicy is what the deletion of a Host does.
type DeletionPolicy string

// The values of DeletionPolicy.
const (
	DeletionDrain  DeletionPolicy = "drain"
	DeletionDetach DeletionPolicy = "detach"
)

// Policy is what the host's owner allows. A field that is not set allows.
type Policy struct {
	// AllowPrivileged allows privileged containers and what is equivalent: hostPID, hostIPC,
	// more capabilities than the runtime's defaults, an unmasked /proc, disabled AppArmor or
	// SELinux; true by default.
	// +optional
	AllowPrivileged *bool `json:"allowPrivileged,omitempty"`
	// AllowHostPath allows hostPath volumes; true by default.
	// +optional
	AllowHostPath *bool `json:"allowHostPath,omitempty"`
	// AllowHostNetwork allows hostNetwork and hostPort; true by default.
	// +optional
	AllowHostNetwork *bool `json:"allowHostNetwork,omitempty"`
	// AllowNFS allows NFS volumes, which the host itself mounts from the server that a pod
	// or a persistent volume names; true by default.
	// +optional
	AllowNFS *bool `json:"allowNFS,omitempty"`
}

// HostStatus is what Bowline reports of a host and its node.
type HostStatus struct {
	// ObservedGeneration is the generation of the spec that the status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Conditions: Ready; LinkUp of a remote host; KubeletExposed of a host that listens for
	// its node.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// NodeName is the host's Node; empty before it was one.
	// +optional
	NodeName string `json:"nodeName,omitempty"`
	// Machine is the machine with which the Host was first used. Bowline refuses another
	// one until someone who may change the status of Hosts replaces or removes this.
	// +optional
	Machine *MachineStatus `json:"machine,omitempty"`
	// Link to the host.
	// +optional
	Link *LinkStatus `json:"link,omitempty"`
	// Runtime of the host.
	// +optional
	Runtime *RuntimeStatus `json:"runtime,omitempty"`
	// Pods is how many pods Bowline runs on the host.
	// +optional
	Pods *int32 `json:"pods,omitempty"`
	// LastError is why Bowline last could not manage the host; empty while it does.
	// +optional
	LastError string `json:"lastError,omitempty"`
}

// MachineStatus identifies a machine, and the login and the runtime on it.
type MachineStatus struct {
	// MachineID is its machine-id(5); empty if it has none.
	// +optional
	MachineID string `json:"machineID,omitempty"`
	// HostKey is the fingerprint of the SSH host key that Bowline accepted, "SHA256:...";
	// empty on the host that Bowline runs on.
	// +optional
	HostKey string `json:"hostKey,omitempty"`
	// User is the login user; empty on the host that Bowline runs on.
	// +optional
	User string `json:"user,omitempty"`
	// Socket is the path of the runtime's socket in the endpoint.
	// +optional
	Socket string `json:"socket,omitempty"`
}

// LinkState is the state of the link.
type LinkState string

// States of the link.
const (
	LinkUp    LinkState = "Up"
	LinkDown  LinkState = "Down"
	LinkLocal LinkState = "Local" // Bowline runs on the host: there is no link
)

// LinkStatus is the link to a host.
type LinkStatus struct {
	// State: Up, Down, or Local.
	State LinkState `json:"state"`
	// RoundTrip is roughly the round trip of the link, such as 20ms. Bowline updates it when
	// it has doubled or halved.
	// +optional
	RoundTrip string `json:"roundTrip,omitempty"`
}

// RuntimeStatus is a host's CRI runtime.
type RuntimeStatus struct {
	// Name, such as containerd.
	Name string `json:"name"`
	// Version that the runtime reports.
	Version string `json:"version"`
}

// Types of a Host's conditions.
const (
	ConditionReady          = "Ready"
	ConditionLinkUp         = "LinkUp"
	ConditionKubeletExposed = "KubeletExposed"
)

// Reasons of the condition LinkUp, on Hosts and on Nodes, and of its events.
const (
	ReasonLinkUp   = "LinkUp"
	ReasonLinkDown = "LinkDown"
)

// Reasons of the events, on Hosts and on Nodes, when the lock of a managed host is lost and held again.
const (
	ReasonLockLost       = "LockLost"
	ReasonLockReacquired = "LockReacquired"
)

// Names that Bowline writes to objects.
const (
	// Finalizer is on a Host that is or was a node.
	Finalizer = "bowline.io/node"
	// HostAnnotation of a Node is the name of its Host.
	HostAnnotation = "bowline.io/host"
)
