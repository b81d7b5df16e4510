// Package pod is the vocabulary that the whole tree shares: values only, no
// behaviour that touches the world. It imports Kubernetes API types and the
// standard library's pure packages.
package pod

import (
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Ref names one life of a pod. Two pods that follow each other under one
// namespace and name differ in UID and never share a worker.
type Ref struct {
	Namespace string
	Name      string
	UID       types.UID
}

// String is the form for logs and errors: namespace/name (uid).
func (r Ref) String() string { return r.Namespace + "/" + r.Name + " (" + string(r.UID) + ")" }

// Phase is where a pod worker stands in the life of its pod. It only grows.
//
//	Syncing ──► Terminating ──► Terminated ──► Gone
//
// Syncing:     entered at birth; the pod should run.
// Terminating: entered on deletion, eviction, deadline, loss of its source, or
// when every container has finished for good; containers are stopped, none starts.
// Terminated:  entered when a fresh observation shows nothing running; the
// sandbox goes, then the volumes.
// Gone:        volumes are released, and the terminal status is accepted by the
// API server or the API object is absent; the worker ends.
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

// ContainerState is the CRI's ContainerState in our own words.
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

// Sandbox is one pod sandbox as the runtime last showed it.
type Sandbox struct {
	ID             string
	Attempt        uint32 // PodSandboxMetadata.Attempt
	Ready          bool   // SANDBOX_READY
	CreatedAt      time.Time
	IPs            []string // primary first; empty on the host network
	NoAddress      bool     // its network is its own, and the runtime shows no address in it
	HostNetwork    bool     // NamespaceOption.Network is NODE
	RuntimeHandler string
	Annotations    map[string]string
	// Users are the machine's IDs that the sandbox's user namespace has; nil: it has
	// none of its own, or the runtime does not tell.
	Users *IDRange
}

// IDRange are Length IDs of the machine from HostID on, which are those from 0 on in a
// user namespace.
type IDRange struct{ HostID, Length uint32 }

// Container is one container instance as the runtime last showed it. Times have
// been moved from the host's clock to ours.
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
	Reason      string // the runtime's word, "OOMKilled" among them
	Message     string // the runtime's message, or the termination message once read
	Image       string // ImageSpec.UserSpecifiedImage, else ImageSpec.Image
	ImageRef    string // ContainerStatus.ImageRef
	ImageID     string // ContainerStatus.ImageId
	LogPath     string
	SpecHash    string // annotation io.kubernetes.container.hash
	Annotations map[string]string
	// Crashes counts the restarts that led to this instance within its sandbox since
	// the last good run, by its annotation; nil where it has none.
	Crashes *uint32
	User    *User // nil where the runtime does not tell
	// Size is what the container was made with, by its annotation; nil where it has
	// none. A resize in place does not change it.
	Size *Size
	// Resources are what it has, as far as the runtime tells; nil where nobody knows.
	Resources *Size
}

// User is the identity of a container's first process (ContainerStatus.User.Linux).
type User struct {
	UID                int64
	GID                int64
	SupplementalGroups []int64
}

// Observed is everything that the runtime showed of one pod at one moment.
// Only pleg makes it. It is immutable once published.
type Observed struct {
	Ref        Ref
	Sandboxes  []Sandbox   // newest attempt first
	Containers []Container // by name, then newest attempt first

	// Seq is the local sequence number taken before the first request of this
	// observation was sent; larger is newer. Zero: never observed.
	Seq uint64
	// At is our clock when that first request was sent.
	At time.Time
	// Stale is empty, or why nothing newer could be had (a transport error). A
	// stale observation says nothing about what runs now.
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

// Verdict is what a probe says of one container instance.
type Verdict int

const (
	VerdictUnknown Verdict = iota // no result yet, or a transport fault: changes nothing
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

// Verdicts are the three probes' results for one container ID, thresholds
// applied. A probe that the container does not declare is VerdictSuccess.
type Verdicts struct {
	Startup, Liveness, Readiness Verdict
	// LivenessGrace is the failing probe's own terminationGracePeriodSeconds, or nil.
	LivenessGrace *int64
	// Message is the failing probe's last output, for the reason of a restart.
	Message string
}

// Labels and annotations on sandboxes and containers. The io.kubernetes ones
// are the kubelet's own, so that crictl and log collectors find what they expect.
const (
	LabelPodName       = "io.kubernetes.pod.name"
	LabelPodNamespace  = "io.kubernetes.pod.namespace"
	LabelPodUID        = "io.kubernetes.pod.uid"
	LabelContainerName = "io.kubernetes.container.name"
	// LabelOwner stamps what is ours; anything without our value is never touched.
	LabelOwner = "bowline.io/owner"
	// AnnotationSize is the Size that a container was made with, AnnotationAllocation
	// on a sandbox the Allocation that its pod had then: what to compare a resize with
	// that came while nobody drove the machine.
	AnnotationSize       = "bowline.io/size"
	AnnotationAllocation = "bowline.io/allocation"
	// AnnotationImage is the image that a container was made of, as its spec has it.
	AnnotationImage = "bowline.io/image"
	// AnnotationCrashes is Container.Crashes: a new process carries the crash
	// back-off on from it.
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
