// Package pod has the types that the whole tree shares. The package is pure: values only, without
// I/O. It imports Kubernetes API types and pure packages of the standard library.
package pod

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Ref identifies one life of a pod. Successive pods with the same namespace and name differ in UID,
// and never share a worker.
type Ref struct {
	Namespace string
	Name      string
	UID       types.UID
}

// String is the form for logs and errors: namespace/name (uid).
func (r Ref) String() string { return r.Namespace + "/" + r.Name + " (" + string(r.UID) + ")" }

// Phase is the state of a pod worker. It only advances.
//
//	Syncing ──► Terminating ──► Terminated ──► Gone
//
// When each phase begins, and what happens in it:
//
//   - Syncing: from the start; the pod should run.
//   - Terminating: on deletion, eviction, deadline, loss of its source, or when every container has
//     finished for good. Containers are stopped, and none starts.
//   - Terminated: when a fresh observation shows nothing running. The sandbox is removed, then the
//     volumes.
//   - Gone: the volumes are released, and the API server has accepted the terminal status or has no
//     such object. The worker ends.
type Phase int

const (
	Syncing Phase = iota
	Terminating
	Terminated
	Gone
)

var phaseNames = [...]string{"Syncing", "Terminating", "Terminated", "Gone"}

func (p Phase) String() string {
	if p < 0 || int(p) >= len(phaseNames) {
		return "Invalid"
	}
	return phaseNames[p]
}

// ContainerState is the CRI's ContainerState.
type ContainerState int

const (
	StateUnknown ContainerState = iota // CONTAINER_UNKNOWN: the runtime lost its shim
	StateCreated
	StateRunning
	StateExited
)

var stateNames = [...]string{"Unknown", "Created", "Running", "Exited"}

func (s ContainerState) String() string {
	if s < 0 || int(s) >= len(stateNames) {
		return "Invalid"
	}
	return stateNames[s]
}

// Sandbox is a pod sandbox as the runtime last showed it.
type Sandbox struct {
	ID             string
	Attempt        uint32 // PodSandboxMetadata.Attempt
	Ready          bool   // SANDBOX_READY
	CreatedAt      time.Time
	IPs            []string // primary first; empty on the host network
	NoAddress      bool     // it has its own network, and the runtime shows no address
	HostNetwork    bool     // NamespaceOption.Network is NODE
	RuntimeHandler string
	Annotations    map[string]string
	// Users is the range of the machine's IDs in the sandbox's user namespace; nil: it has none, or
	// the runtime does not report it.
	Users *IDRange
}

// Container is a container instance as the runtime last showed it. Times are converted from the
// host's clock to the local one.
type Container struct {
	ID          string // the runtime's own ID, without the "containerd://" scheme
	Name        string // label io.kubernetes.container.name
	SandboxID   string
	Attempt     uint32 // restart count at creation (ContainerMetadata.Attempt)
	State       ContainerState
	CreatedAt   time.Time
	StartedAt   time.Time // zero until started
	FinishedAt  time.Time // zero until exited
	ExitCode    int32
	Reason      string // as the runtime reports it, for example "OOMKilled"
	Message     string // the runtime's message, or the termination message once read
	Image       string // ImageSpec.UserSpecifiedImage, else ImageSpec.Image
	ImageRef    string // ContainerStatus.ImageRef
	ImageID     string // ContainerStatus.ImageId
	LogPath     string
	SpecHash    string // annotation io.kubernetes.container.hash
	Annotations map[string]string
	// Crashes counts the restarts in its sandbox, since the last good run, that led to this
	// instance, from its annotation; nil if there is none.
	Crashes *uint32
	User    *User // nil if the runtime does not report it
	// StopSignal is what it is stopped with, such as SIGTERM; empty if the runtime does not report it.
	StopSignal string
	// Size is what the container was created with, from its annotation; nil if there is none. An
	// in-place resize does not change it.
	Size *Size
	// Resources is what it has now, as far as the runtime reports it; nil if unknown.
	Resources *Size
}

// User is the identity of a container's first process (ContainerStatus.User.Linux).
type User struct {
	UID                int64
	GID                int64
	SupplementalGroups []int64
}

// Observed is everything that the runtime showed of one pod at one time. Only pleg creates it. It
// is immutable once published.
type Observed struct {
	Ref        Ref
	Sandboxes  []Sandbox   // newest attempt first
	Containers []Container // by name, then newest attempt first

	// Seq is the local sequence number taken before the first request of this observation was sent;
	// larger is newer. Zero: never observed.
	Seq uint64
	// At is the local time when that first request was sent.
	At time.Time
	// Stale is why the runtime has not answered since (a transport error), or empty. A stale
	// observation says nothing about what runs now.
	Stale string
}

// Newest returns the newest instance of the named container, or nil.
func (o *Observed) Newest(name string) *Container {
	for i := range o.Containers {
		if o.Containers[i].Name == name {
			return &o.Containers[i]
		}
	}
	return nil
}

// Fresh reports whether the observation shows what the host has now.
func (o *Observed) Fresh() bool { return o.Stale == "" && o.Seq > 0 }

// Exists reports whether the host has a sandbox or container of the pod.
func (o *Observed) Exists() bool { return len(o.Sandboxes)+len(o.Containers) > 0 }

// Verdict is the result of a probe for one container instance.
type Verdict int

const (
	VerdictUnknown Verdict = iota // no result yet, or a transport error: changes nothing
	VerdictSuccess
	VerdictFailure
)

var verdictNames = [...]string{"Unknown", "Success", "Failure"}

func (v Verdict) String() string {
	if v < 0 || int(v) >= len(verdictNames) {
		return "Invalid"
	}
	return verdictNames[v]
}

// Verdicts are the results of the three probes for one container ID, after thresholds. A probe that
// the container does not declare is VerdictSuccess.
type Verdicts struct {
	Startup, Liveness, Readiness Verdict
	// LivenessGrace is the failing probe's own terminationGracePeriodSeconds, or nil.
	LivenessGrace *int64
	// Message is the failing probe's last output, for the reason of a restart.
	Message string
}

// Labels and annotations of sandboxes and containers. Those with io.kubernetes are the kubelet's,
// so that crictl and log collectors work as usual.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
	// LabelOwner marks what is ours; anything without our value is never touched.
	LabelOwner = "bowline.io/owner"
	// AnnotationSize is the Size that a container was created with. AnnotationAllocation, on a
	// sandbox, is the Allocation that its pod had at its creation. A resize is compared with them
	// if it came while no process managed the machine.
	AnnotationSize       = "bowline.io/size"
	AnnotationAllocation = "bowline.io/allocation"
	// AnnotationUsers, on a sandbox, is its range of user IDs (see ParseUsers). The runtime's lists
	// show it, so it is known although a sandbox's status cannot be read.
	AnnotationUsers = "bowline.io/users"
	// AnnotationImage is the container's image as in the spec.
	AnnotationImage = "bowline.io/image"
	// AnnotationCrashes is Container.Crashes: a new process continues the crash back-off from it.
	AnnotationCrashes = "bowline.io/crashes"

	AnnotationHash              = "io.kubernetes.container.hash"
	AnnotationRestartCount      = "io.kubernetes.container.restartCount"
	AnnotationTerminationPath   = "io.kubernetes.container.terminationMessagePath"
	AnnotationTerminationPolicy = "io.kubernetes.container.terminationMessagePolicy"
	AnnotationPodGrace          = "io.kubernetes.pod.terminationGracePeriod"
	AnnotationPodDeletionGrace  = "io.kubernetes.pod.deletionGracePeriod"
	AnnotationPreStop           = "io.kubernetes.container.preStopHandler"
	AnnotationPorts             = "io.kubernetes.container.ports"
)
