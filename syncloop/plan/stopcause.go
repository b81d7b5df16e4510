package plan

// StopCause is why a container is stopped. Events, statuses and decisions depend on it; Stop.Words
// is for people only.
type StopCause int

const (
	StopNone            StopCause = iota // not stopped by this worker
	StopPodEnds                          // the pod is terminating
	StopNotInSpec                        // the pod's spec has no such container
	StopSandboxNotReady                  // its sandbox is not ready, or has no address
	StopSandboxReplaced                  // it belongs to an older sandbox
	StopSuperseded                       // a newer instance exists
	StopStateUnknown                     // the runtime does not know its state
	StopRestartAll                       // another container's exit restarts all
	StopDefinition                       // its definition changed
	StopStartupProbe                     // it failed its startup probe
	StopLivenessProbe                    // it failed its liveness probe
	StopResize                           // a resize requires a restart
	StopPostStart                        // its postStart hook failed
	stopCauses
)

// Stop is why a container is stopped: the cause for code, the words for people.
type Stop struct {
	Cause StopCause
	Words string
}
