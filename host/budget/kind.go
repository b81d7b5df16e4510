package budget

import "fmt"

// Kind names one budget.
type Kind int

// The budgets. Those of one thing (a reply, a line, a file) are compared with each
// thing by itself; those that are held (open calls, channels) with what is held at once.
const (
	// ReplyBytes: a list of everything that the runtime has, on the wire.
	ReplyBytes Kind = iota
	// Items: the sandboxes, containers, images or map entries of one reply, the fields or
	// lines of one script's answer, or the entries of one directory.
	Items
	// Pods: pods that the runtime shows as ours, by UID.
	Pods
	// StatusBytes: a status, or a list of one pod, on the wire.
	StatusBytes
	// LineBytes: one line that a script or a program of ours on the host prints, or the
	// runtime's reply to an action.
	LineBytes
	// OutputBytes: all that one request to a shell, or one command, prints.
	OutputBytes
	// OpenCalls: calls to the runtime that have not ended.
	OpenCalls
	// Channels: SSH channels that we have closed, and the host has not in time.
	Channels
	// FileBytes: one file that is read whole.
	FileBytes
	// Memory: what one decoded reply, all that is kept of the runtime's statuses, or all
	// that was not read of an SSH connection takes in this process, as estimated.
	Memory
	// Panic: code that reads what the host says has panicked. There is none to spend.
	Panic

	kinds
)

var names = [kinds]string{"ReplyBytes", "Items", "Pods", "StatusBytes", "LineBytes", "OutputBytes",
	"OpenCalls", "Channels", "FileBytes", "Memory", "Panic"}

// String is the name that errors, metrics and conditions have for the budget.
func (k Kind) String() string {
	if k < 0 || k >= kinds {
		return fmt.Sprintf("Kind(%d)", int(k))
	}
	return names[k]
}

// Kinds are all kinds, in order.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for k := range all {
		all[k] = Kind(k)
	}
	return all
}

// ExceededError: the host has exceeded a budget.
type ExceededError struct {
	Kind  Kind
	Limit int64  // of the budget
	What  string // exceeded it: "the reply to ListPodSandbox"
}

func (e *ExceededError) Error() string {
	if e.Kind == Panic {
		return fmt.Sprintf("budget %s: %s", e.Kind, e.What)
	}
	return fmt.Sprintf("budget %s of %d exceeded by %s", e.Kind, e.Limit, e.What)
}
