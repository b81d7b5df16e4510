package plan

import (
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Input is all that a decision depends on. Decide reads it and changes nothing.
type Input struct {
	Now   time.Time
	Pod   *v1.Pod
	Phase pod.Phase
	// Terminate is nil until something asked the pod to end; the sterner of two
	// requests wins before it gets here (shorter grace, earlier time).
	Terminate *Terminate
	Observed  pod.Observed
	// NeedSeq is the sequence number after this worker's last mutation: an
	// observation with a smaller Seq may not show it, so nothing is decided on it.
	NeedSeq  uint64
	Verdicts map[string]pod.Verdicts // by container ID
	Ledger   Ledger
	InFlight []Operation
	// Volumes is the state of the pod's volumes on the host.
	Volumes VolumeState
	// Reported: the API server has accepted the terminal status of this UID, or
	// the API object is absent.
	Reported bool
	// Hold is empty, or why nothing may start now (runtime or network not ready,
	// sources not seen yet). Stopping goes on.
	Hold string
	// Jitter in [0,1) spreads back-offs.
	Jitter float64
	// Hashes are the wanted spec hashes by container name, FormerHashes those of the same
	// spec in other forms (cri/spec). A running instance that was made of another image is
	// stopped and replaced. One whose hash is among these was not; of another, whose form
	// may be unknown, its image tells. An empty or missing hash on either side is no
	// difference.
	Hashes       map[string]string
	FormerHashes map[string][]string
	// Allocated is the allocation that Pod carries, written down (pod.Allocation);
	// empty: nothing is known of it, and nothing is resized.
	Allocated string
}

// Terminate is a request to end the pod.
type Terminate struct {
	At      time.Time
	Grace   time.Duration // from At; at least 1 s for a pod that may run its hooks
	Cause   Cause
	Reason  string // for the status, "Evicted", "DeadlineExceeded"; empty on deletion
	Message string
	// Disruption is the message of the condition DisruptionTarget; empty: none.
	Disruption string
}

// Cause is who asked for the end.
type Cause int

const (
	CauseDeleted Cause = iota // the API object has a deletionTimestamp, or is absent
	CauseOrphan               // no source has the pod any more
	CauseEvicted
	CauseDeadline // activeDeadlineSeconds; Decide finds it by itself
	CauseFinished // every container has finished for good; Decide finds it by itself
	CauseRejected // the node does not take the pod; nothing of it has run
	CauseShutdown // the machine goes down
)

// VolumeState is the state of the pod's volumes on the host.
type VolumeState int

const (
	VolumesNone     VolumeState = iota // nothing prepared, or not known
	VolumesReady                       // all mounted and filled
	VolumesReleased                    // unmounted and removed, after the end
)

// Ledger is what the runtime cannot hold. It is a value: Decide returns a new one.
// A new process starts from the zero Ledger and what it observes.
type Ledger struct {
	// Backoff by container name, under SandboxKey for the sandbox, VolumesKey for
	// the volumes, and IDKey for the end of one container or sandbox. Keys that
	// begin with a slash are no container's.
	Backoff map[string]Backoff
	// Hooked holds, by container ID, true once the postStart hook has been run, or
	// has failed, and false where the start's reply was lost before the hook. A
	// container that is not in it, one of an earlier life, counts as hooked.
	Hooked map[string]bool
	// StopBegan holds, by container ID, when its termination began (preStop
	// included), so that a StopContainer cut off is issued again with what remains.
	StopBegan map[string]time.Time
	// StopBy holds, by container ID, the time by which the stop begun last kills.
	StopBy map[string]time.Time
	// Stops counts, by container ID, the stops that were asked for.
	Stops map[string]int
	// PreStopped holds the container IDs whose preStop hook has been run.
	PreStopped map[string]bool
	// Why holds, by container ID, the cause of a stop that was ours.
	// A running container that is in it is stopped, whatever the cause has become.
	Why map[string]Stop
	// Again holds the container IDs that we stopped in order to start them again,
	// so that a clean exit on our signal does not count as the work's end.
	Again map[string]bool
	// Pulled holds the names of containers whose image was made present and which
	// have not been started with it yet.
	Pulled map[string]bool
	// Crashes holds, by container name, the count for the next instance
	// (pod.Container.Crashes), where no instance is left to count from.
	Crashes map[string]uint32
	// Attempts holds, by container name, the smallest attempt for the next
	// instance, where no instance is left to count from.
	Attempts map[string]uint32
	// Stopped holds the sandbox IDs that were stopped with success: a sandbox that
	// is merely not ready may still hold its network.
	Stopped map[string]bool
	// Sized holds, by container ID, what the last resize in place made of it. One
	// that is not in it has the size that it was made with.
	Sized map[string]pod.Size
	// Cgroups holds, by sandbox ID, what the last resize made of the pod's own cgroup.
	// One that is not in it was made for what the sandbox's annotation says.
	Cgroups map[string]Cgroup
}

// Cgroup is what a pod's own cgroup was made for.
type Cgroup struct {
	Allocated string // empty: not known
	Unsure    bool   // a later resize has failed, and may have done a part
}

// Keys of Ledger.Backoff that are not container names; no container may be called so.
const (
	SandboxKey = "/sandbox"
	VolumesKey = "/volumes"
	ResizeKey  = "/resize"
)

// IDKey is the key of Ledger.Backoff for stopping and removing one container or
// sandbox.
func IDKey(id string) string { return "/id/" + id }

// Backoff of one thing that failed.
type Backoff struct {
	Failures int
	Until    time.Time
	// Reason and Message are for the waiting state: "ErrImagePull",
	// "CreateContainerConfigError", "RunContainerError", "CrashLoopBackOff", ...
	Reason  string
	Message string
	// Of is what failed. An empty Reason is a mere pause: nothing to show.
	Of OpKind
	// ID is the instance whose exit a CrashLoopBackOff follows.
	ID string
}

// OpKind is what an operation does.
type OpKind int

const (
	// OpVolumes makes the pod's directories and fills and mounts its volumes.
	OpVolumes OpKind = iota
	// OpSandbox runs a new sandbox: Attempt.
	OpSandbox
	// OpPull makes a container's image present, beside the sandbox: Container.
	OpPull
	// OpStart creates and starts a container and runs its postStart: Container,
	// Attempt, and the sandbox's ID. Its image has been pulled (OpPull).
	OpStart
	// OpStop ends a container: ID, Container, Grace, Cause, Reason, PreStop.
	OpStop
	// OpStopSandbox stops a sandbox and its network: ID.
	OpStopSandbox
	// OpRemoveContainer removes a dead container: ID, Container.
	OpRemoveContainer
	// OpRemoveSandbox removes a stopped sandbox: ID.
	OpRemoveSandbox
	// OpRelease unmounts and removes volumes, cgroup and pod directory.
	OpRelease
	// OpHook runs the postStart hook of a container whose start's reply was lost:
	// ID, Container.
	OpHook
	// OpResize brings the pod's cgroup and its running containers to what was
	// allocated: the sandbox's ID, Allocated.
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

// Mutates reports whether an operation of this kind changes what the runtime
// would show: after it, and whatever its outcome, only a new observation counts.
func (k OpKind) Mutates() bool {
	switch k {
	case OpVolumes, OpPull, OpRelease, OpHook:
		return false
	}
	return true
}

// Operation is one action, and while it runs one entry of Input.InFlight. Two
// with equal Key are the same operation.
type Operation struct {
	Kind      OpKind
	Container string // name
	ID        string // container or sandbox ID
	Attempt   uint32
	Crashes   uint32        // OpStart: the new instance's pod.Container.Crashes
	Grace     time.Duration // OpStop: what remains; 0 kills at once
	PreStop   bool          // OpStop: run the preStop hook first, within Grace
	Cause     StopCause     // OpStop: why, for the event
	Reason    string        // in words, for the log and `why` only
	Allocated string        // OpResize: what the pod is to have
	Was       Cgroup        // OpResize: what its cgroup has
}

// Plan is what to do next.
type Plan struct {
	// Phase is the worker's phase from now on; never smaller than the input's.
	Phase pod.Phase
	// Terminate is the request in force: the input's, or one that Decide found
	// (deadline, finished).
	Terminate *Terminate
	// Start are operations to begin, in this order; each runs as a child operation.
	Start []Operation
	// Cancel are keys of operations in flight to cancel (starts, on Terminating).
	Cancel []Key
	Ledger Ledger
	// WakeAt is the earliest time at which the answer could change by itself;
	// zero: only an event can change it.
	WakeAt time.Time
	// Reason says in words why this and not more.
	Reason string
	// Illegal is empty, or names a phase edge that must not be; the phase was left
	// as it was. The worker counts it.
	Illegal string
}

// Key identifies an operation while it runs.
type Key struct {
	Kind      OpKind
	Container string
	ID        string
}

// Key of the operation.
func (o Operation) Key() Key { return Key{o.Kind, o.Container, o.ID} }

// Outcome is how an operation ended; Record turns it into a new Ledger.
type Outcome struct {
	Operation Operation
	At        time.Time
	// Err is empty on success. Reason is the waiting reason that belongs to it.
	Err, Reason string
	// Transport: the call may or may not have happened; nothing is counted as a
	// failure, the next observation tells.
	Transport bool
	// ContainerID of the instance that OpStart made, if it got as far as its start:
	// it may have run, whatever came of the call.
	ContainerID string
	// Hooked: the operation's hook ran (or failed, with Err): postStart of
	// ContainerID for OpStart and OpHook, preStop for OpStop.
	Hooked bool
	// Sized are, by container ID, those that OpResize has resized, whatever came of
	// the rest.
	Sized map[string]pod.Size
}
