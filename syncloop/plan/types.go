package plan

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Input is everything that a decision depends on. Decide does not change it.
type Input struct {
	Now   time.Time
	Pod   *v1.Pod
	Phase pod.Phase
	// Terminate is nil until something asks the pod to end. The caller combines several requests
	// with Merge.
	Terminate *Terminate
	Observed  pod.Observed
	// NeedSeq is the sequence number after this worker's last mutation. An observation with a
	// smaller Seq may not show that mutation, so nothing is decided on it.
	NeedSeq  uint64
	Verdicts map[string]pod.Verdicts // by container ID
	Ledger   Ledger
	InFlight []Operation
	// Volumes is the state of the pod's volumes on the host.
	Volumes VolumeState
	// Reported says that the API server has accepted the terminal status of this UID, or that the
	// API object does not exist.
	Reported bool
	// Hold is why nothing may start now (runtime or network not ready, sources not seen yet), or
	// empty. Containers are still stopped.
	Hold string
	// Jitter in [0,1) spreads back-offs.
	Jitter float64
	// FirstRestartPeriod is the pause before the second restart of a container that crashes;
	// MaxRestartPeriod is the longest pause. 0 means 10 seconds, and 5 minutes.
	FirstRestartPeriod, MaxRestartPeriod time.Duration
	// Hashes are the wanted spec hashes by container name; FormerHashes are those of the same spec
	// in other forms (cri/spec). A running instance of another image is stopped and replaced. An
	// instance with one of these hashes has the right image; with an unknown hash, its image
	// decides (see redefined). An empty or missing hash on either side counts as equal.
	Hashes       map[string]string
	FormerHashes map[string][]string
	// Allocated is the pod's allocation in its written form (pod.Allocation). If it is empty, the
	// allocation is unknown and nothing is resized.
	Allocated string
}

// Terminate is a request to end the pod.
type Terminate struct {
	At      time.Time
	Grace   time.Duration // from At; 0 kills at once, without preStop hooks
	Cause   Cause
	Reason  string // for the status, "Evicted", "DeadlineExceeded"; empty on deletion
	Message string
	// Disruption is the message of the condition DisruptionTarget; empty for no condition.
	Disruption string
}

// Cause is why the pod ends.
type Cause int

const (
	CauseDeleted Cause = iota // the API object has a deletionTimestamp, or does not exist
	CauseOrphan               // no source has the pod any more
	CauseEvicted
	CauseDeadline // activeDeadlineSeconds; found by Decide
	CauseFinished // every container has finished for good; found by Decide
	CauseRejected // not admitted by the node; nothing of it has run
	CauseShutdown // the host is shutting down
)

// VolumeState is the state of the pod's volumes on the host.
type VolumeState int

const (
	VolumesNone     VolumeState = iota // not prepared, or unknown
	VolumesReady                       // all mounted and filled
	VolumesReleased                    // unmounted and removed, after the pod's end
)

// Ledger is the worker's memory of facts that the runtime does not store. It is a value: Decide returns a
// new one. A new process starts from the zero Ledger and its observations.
type Ledger struct {
	// Names are the pod's containers by name. SandboxKey, VolumesKey and ResizeKey, which no
	// container is named, have the back-offs of the pod's own operations.
	Names map[string]NameRecord
	// Containers and Sandboxes have the records of those on the host, by ID.
	Containers map[string]ContainerRecord
	Sandboxes  map[string]SandboxRecord
}

// NameRecord is the planner's memory of a container, across its instances.
type NameRecord struct {
	Backoff Backoff
	// Pulled says that the image is present, and that the container has not been started with it
	// yet.
	Pulled bool
	// Crashes is the crash count for the next instance (pod.Container.Crashes), and Attempt the
	// smallest attempt for it, for when no instance is left to count from.
	Crashes, Attempt uint32
}

// ContainerRecord is the planner's memory of one instance of a container.
type ContainerRecord struct {
	Hook HookState
	// StopBegan is when its termination began (preStop included), so that an interrupted
	// StopContainer is issued again with the remaining grace period. StopBy is the time by which the
	// latest stop kills it. Stops counts the stops that were issued.
	StopBegan, StopBy time.Time
	Stops             int
	PreStopped        bool // its preStop hook has run
	// Why is the cause of a stop by this worker. A running container with one is stopped even if
	// the cause no longer applies.
	Why Stop
	// Again says that it was stopped to be started again, so that a clean exit on our signal does
	// not count as completion.
	Again bool
	// Size is the result of the last in-place resize; nil: it has the size that it was created with.
	Size    *pod.Size
	Backoff Backoff // of stopping and removing it
}

// HookState is the state of a container's postStart hook.
type HookState int

const (
	HookUnknown HookState = iota // the container was made before this process began; counts as done
	HookPending                  // the start's reply was lost before the hook
	HookDone                     // it has run, or failed
)

// SandboxRecord is the planner's memory of one sandbox.
type SandboxRecord struct {
	// Stopped says that it was stopped successfully. One that is only not ready may still hold its
	// network.
	Stopped bool
	// Cgroup is the result of the last resize of the pod's own cgroup; nil: the cgroup has the size
	// in the sandbox's annotation.
	Cgroup  *Cgroup
	Backoff Backoff // of stopping and removing it
}

// Cgroup is the allocation that a pod's own cgroup was sized for.
type Cgroup struct {
	Allocated string // empty if unknown
	Unsure    bool   // a later resize failed, and may have been partly applied
}

// Keys of Ledger.Names that no container name can equal.
const (
	SandboxKey = "/sandbox"
	VolumesKey = "/volumes"
	ResizeKey  = "/resize"
)

// idPrefix begins the key of a back-off that concerns one container or sandbox.
const idPrefix = "/id/"

// IDKey is the key of Ledger.Backoff for stopping and removing one container or sandbox.
func IDKey(id string) string { return idPrefix + id }

// Backoff is the pause after something failed. The zero value is none.
type Backoff struct {
	Failures int
	Until    time.Time
	// Reason and Message are for the waiting state: "ErrImagePull",
	// "CreateContainerConfigError", "RunContainerError", "CrashLoopBackOff", ...
	Reason  string
	Message string
	// Of is what failed. With an empty Reason it is only a pause, which the status does not show.
	Of OpKind
	// ID is the instance whose exit a CrashLoopBackOff follows.
	ID string
}

// OpKind is the kind of an operation.
type OpKind int

const (
	// OpVolumes makes the pod's directories, and fills and mounts its volumes.
	OpVolumes OpKind = iota
	// OpSandbox runs a new sandbox. Uses Attempt.
	OpSandbox
	// OpPull makes a container's image present, independently of the sandbox. Uses Container.
	OpPull
	// OpStart creates and starts a container whose image is present, and runs its postStart hook.
	// Uses Container, Attempt, and ID (the sandbox's).
	OpStart
	// OpStop stops a container. Uses ID, Container, Grace, Cause, Reason, PreStop.
	OpStop
	// OpStopSandbox stops a sandbox and its network. Uses ID.
	OpStopSandbox
	// OpRemoveContainer removes a dead container. Uses ID, Container.
	OpRemoveContainer
	// OpRemoveSandbox removes a stopped sandbox. Uses ID.
	OpRemoveSandbox
	// OpRelease unmounts and removes volumes, cgroup and pod directory.
	OpRelease
	// OpHook runs the postStart hook of a container whose start's reply was lost. Uses ID,
	// Container.
	OpHook
	// OpResize resizes the pod's cgroup and its running containers to the allocation. Uses ID (the
	// sandbox's), Allocated.
	OpResize
)

var opNames = [...]string{"volumes", "sandbox", "pull", "start", "stop", "stop-sandbox",
	"remove-container", "remove-sandbox", "release", "hook", "resize"}

func (k OpKind) String() string {
	if k < 0 || int(k) >= len(opNames) {
		return "invalid"
	}
	return opNames[k]
}

// Mutates reports whether an operation of this kind changes the runtime's lists. After such an
// operation, whatever its outcome, only a new observation counts.
func (k OpKind) Mutates() bool {
	switch k {
	case OpVolumes, OpPull, OpRelease, OpHook:
		return false
	}
	return true
}

// Operation is one action to execute, and while it runs an entry of Input.InFlight. Two operations
// with equal Key are the same one.
type Operation struct {
	Kind      OpKind
	Container string // name
	ID        string // container or sandbox ID
	Attempt   uint32
	Crashes   uint32        // OpStart: pod.Container.Crashes of the new instance
	Grace     time.Duration // OpStop: what remains of it; 0 kills at once
	PreStop   bool          // OpStop: run the preStop hook first, within Grace
	Cause     StopCause     // OpStop: why, for the event
	Reason    string        // in words, for the log and `why` only
	Allocated string        // OpResize: the allocation to resize to
	Was       Cgroup        // OpResize: the current size of the pod's cgroup
}

// Plan is what to do next.
type Plan struct {
	// Phase is the worker's phase from now on, never before the input's.
	Phase pod.Phase
	// Terminate is the request in force: the input's, or one that Decide found (deadline,
	// finished).
	Terminate *Terminate
	// Start are the operations to begin, in this order. They run concurrently.
	Start []Operation
	// Cancel are the keys of operations in flight to cancel (starts, on Terminating).
	Cancel []Key
	Ledger Ledger
	// WakeAt is the earliest time at which the decision could change without an event; zero if only
	// an event can change it.
	WakeAt time.Time
	// Reason says in words why the plan is as it is.
	Reason string
	// Illegal names a forbidden phase change, or is empty. The phase stayed as it was. The worker
	// counts these.
	Illegal string
}

// Key identifies an operation while it runs.
type Key struct {
	Kind      OpKind
	Container string
	ID        string
}

// Key identifies the operation while it is in flight.
func (o Operation) Key() Key { return Key{o.Kind, o.Container, o.ID} }

// Outcome is the end of an operation. Record turns it into a new Ledger.
type Outcome struct {
	Operation Operation
	At        time.Time
	// Err is empty on success. Reason is its reason for the container's waiting state.
	Err, Reason string
	// Transport says that the call may or may not have taken effect. It does not count as a
	// failure; the next observation shows the result.
	Transport bool
	// ContainerID is the instance that OpStart created, if it got as far as starting it. It may
	// have run, whatever the call returned.
	ContainerID string
	// Hooked says that the operation's hook ran (or failed, with Err): postStart of ContainerID for
	// OpStart and OpHook, preStop for OpStop.
	Hooked bool
	// Sized are, by container ID, the containers that OpResize has resized, even if the operation
	// failed.
	Sized map[string]pod.Size
}
