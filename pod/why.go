package pod

import (
	"slices"
	"time"
)

// WhyReport answers "why is my pod not running?": what the pod's worker knows, what it decided and
// what it waits for. It is served as JSON on /bowline/v1/why/{namespace}/{pod}; Text formats it for
// a terminal.
type WhyReport struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       string    `json:"uid"`
	Node      string    `json:"node,omitempty"`
	At        time.Time `json:"at"` // local time of the report
	// Phase of the worker: Syncing, Terminating, Terminated, Gone.
	Phase string `json:"phase"`
	// Reason of the latest decision, in words.
	Reason string `json:"reason"`
	// Ending is set once the pod is to be terminated.
	Ending *WhyEnding `json:"ending,omitempty"`
	// Waits is what the worker waits for; nil: for the next change.
	Waits    *WhyWait       `json:"waits,omitempty"`
	Observed WhyObserved    `json:"observed"`
	InFlight []WhyOperation `json:"inFlight,omitempty"`
	Backoffs []WhyBackoff   `json:"backoffs,omitempty"`
	// Decisions are the last ones, oldest first.
	Decisions []WhyDecision `json:"decisions,omitempty"`
}

// WhyEnding is the current request to terminate the pod.
type WhyEnding struct {
	Cause   string    `json:"cause"` // "deleted", "orphan", "evicted", "deadline", "finished"
	At      time.Time `json:"at"`
	Seconds int64     `json:"graceSeconds"`
	Message string    `json:"message,omitempty"`
}

// WhyWait is one thing that the worker waits for.
type WhyWait struct {
	For   string    `json:"for"`            // "the back-off of container app"
	Until time.Time `json:"until,omitzero"` // zero: until something happens
}

// WhyObserved is the latest observation of the runtime, as far as it explains the state.
type WhyObserved struct {
	At  time.Time `json:"at,omitzero"` // zero: never observed
	Seq uint64    `json:"seq,omitempty"`
	// Stale is empty, or why there is no newer observation.
	Stale      string         `json:"stale,omitempty"`
	Sandboxes  []WhySandbox   `json:"sandboxes,omitempty"`
	Containers []WhyContainer `json:"containers,omitempty"`
}

// WhySandbox is one sandbox of an observation.
type WhySandbox struct {
	ID      string   `json:"id"`
	Attempt uint32   `json:"attempt"`
	Ready   bool     `json:"ready"`
	IPs     []string `json:"ips,omitempty"`
}

// WhyContainer is the newest instance of a container, or a container without an instance.
type WhyContainer struct {
	Name     string    `json:"name"`
	ID       string    `json:"id,omitempty"`
	State    string    `json:"state"`          // Running, Exited, Created, Unknown, or Absent
	Since    time.Time `json:"since,omitzero"` // started, or finished if it exited
	ExitCode int32     `json:"exitCode,omitempty"`
	Restarts uint32    `json:"restarts"`
	// Detail is the runtime's reason and message, and a failing probe's last output.
	Detail string `json:"detail,omitempty"`
}

// WhyOperation is an operation in progress.
type WhyOperation struct {
	What   string    `json:"what"` // "pull app", "stop web"
	Since  time.Time `json:"since"`
	Reason string    `json:"reason,omitempty"`
}

// WhyBackoff is something that failed and will be retried.
type WhyBackoff struct {
	What     string    `json:"what"` // a container's name, "sandbox", "volumes"
	Failures int       `json:"failures"`
	Until    time.Time `json:"until"`
	Reason   string    `json:"reason"` // "ImagePullBackOff"
	Message  string    `json:"message,omitempty"`
}

// WhyDecision is one decision, or several equal ones in a row.
type WhyDecision struct {
	At      time.Time   `json:"at"`
	Last    time.Time   `json:"last,omitzero"`   // time of the last equal one
	Times   int         `json:"times,omitempty"` // 1 for a single one
	Phase   string      `json:"phase"`
	Reason  string      `json:"reason"`
	Actions []WhyAction `json:"actions,omitempty"`
}

// WhyAction is one operation that a decision started.
type WhyAction struct {
	What string `json:"what"`
	// Outcome is empty while it runs, "done", or the error.
	Outcome string    `json:"outcome,omitempty"`
	Ended   time.Time `json:"ended,omitzero"`
}

// DecisionLogSize is how many different decisions a worker remembers.
const DecisionLogSize = 20

// AppendDecision appends d to the log and returns the log, at most DecisionLogSize long. A decision
// without actions that repeats the previous one only increments its count.
func AppendDecision(log []WhyDecision, d WhyDecision) []WhyDecision {
	if n := len(log); n > 0 && len(d.Actions) == 0 && log[n-1].Phase == d.Phase && log[n-1].Reason == d.Reason {
		last := &log[n-1]
		last.Times = max(last.Times, 1) + 1
		last.Last = d.At
		return log
	}
	d.Times = max(d.Times, 1)
	log = append(log, d)
	if extra := len(log) - DecisionLogSize; extra > 0 {
		log = slices.Delete(log, 0, extra)
	}
	return log
}

// EndAction records the outcome of the newest running action called what.
func EndAction(log []WhyDecision, what, outcome string, at time.Time) {
	for i := len(log) - 1; i >= 0; i-- {
		for j := range log[i].Actions {
			a := &log[i].Actions[j]
			if a.What == what && a.Outcome == "" {
				a.Outcome, a.Ended = outcome, at
				return
			}
		}
	}
}
