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
}

// Terminate is a request to end the pod.
type Terminate struct {
	At      time.Time
	Grace   time.Duration // from At; at least 1 s for a pod that may run its hooks
	Cause   Cause
	Reason  string // for the status, "Evicted", "DeadlineExceeded"; empty on deletion
	Message string
}

// Cause is who asked for the end.
type Cause int

const (
	CauseDeleted Cause = iota // the API object has a deletionTimestamp, or is absent
	CauseOrphan               // no source has the pod any more
	CauseEvicted
	CauseDeadline // activeDeadlineSeconds; Decide finds it by itself
	CauseFinished // every container has finished for good; Decide finds it by itself
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
	// Backoff by container name, and under SandboxKey for the sandbox and
	// VolumesKey for the volumes.
	Backoff map[string]Backoff
	// Hooked holds the container IDs whose postStart hook has been run, or has
	// failed; a container of an earlier life counts as hooked.
	Hooked map[string]bool
	// StopBegan holds, by container ID, when its termination began (preStop
	// included), so that a StopContainer cut off is issued again with what remains.
	StopBegan map[string]time.Time
	// Why holds, by container ID, the reason of a stop that was ours, for status.
	Why map[string]string
}

// Keys of Ledger.Backoff that are not container names; no container may be called so.
const (
	SandboxKey = "/sandbox"
	VolumesKey = "/volumes"
)

// Backoff of one thing that failed.
type Backoff struct {
	Failures int
	Until    time.Time
	// Reason and Message are for the waiting state: "ErrImagePull",
	// "CreateContainerConfigError", "RunContainerError", "CrashLoopBackOff", ...
	Reason  string
	Message string
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
	// OpStart creates and starts a container and runs its postStart: Container, Attempt.
	OpStart
	// OpStop ends a container: ID, Container, Grace, Reason, PreStop.
	OpStop
	// OpStopSandbox stops a sandbox and its network: ID.
	OpStopSandbox
	// OpRemoveContainer removes a dead container: ID, Container.
	OpRemoveContainer
	// OpRemoveSandbox removes a stopped sandbox: ID.
	OpRemoveSandbox
	// OpRelease unmounts and removes volumes, cgroup and pod directory.
	OpRelease
)

// Operation is one action, and while it runs one entry of Input.InFlight. Two
// with equal Key are the same operation.
type Operation struct {
	Kind      OpKind
	Container string // name
	ID        string // container or sandbox ID
	Attempt   uint32
	Grace     time.Duration // OpStop: what remains; 0 kills at once
	PreStop   bool          // OpStop: run the preStop hook first, within Grace
	Reason    string        // in words, for the log, the event and `why`
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
	// ContainerID of the instance that OpStart made, if it got that far.
	ContainerID string
	// Hooked: postStart of ContainerID ran (or failed, with Err).
	Hooked bool
}
