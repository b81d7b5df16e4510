package budget

import "fmt"

// Kind names one budget.
type Kind int

// The budgets. The limit of a size (of a reply, a line, a file) applies to each one by itself; the
// limit of open calls, channels and the like applies to the number that is open at once.
const (
	// ReplyBytes: a list of everything in the runtime, on the wire.
	ReplyBytes Kind = iota
	// Items: the sandboxes, containers, images or map entries of one reply, the fields or lines
	// of one script's output, or the entries of one directory.
	Items
	// Pods: the pods of this node in the runtime, by UID.
	Pods
	// StatusBytes: a status, or a list for one pod, on the wire.
	StatusBytes
	// LineBytes: one line that a script or program of ours prints on the host, or the runtime's
	// reply to an action.
	LineBytes
	// OutputBytes: all output of one shell request or one command.
	OutputBytes
	// OpenCalls: calls to the runtime that have not ended.
	OpenCalls
	// Channels: SSH channels that we have closed and the host has not closed in time.
	Channels
	// FileBytes: one file that is read whole.
	FileBytes
	// Memory: estimated memory in this process of one decoded reply, of all cached statuses of
	// the runtime, or of all unread data of an SSH connection.
	Memory
	// Panic: code that reads output of the host has panicked. Its limit is zero.
	Panic

	kinds
)

var names = [kinds]string{"ReplyBytes", "Items", "Pods", "StatusBytes", "LineBytes", "OutputBytes",
	"OpenCalls", "Channels", "FileBytes", "Memory", "Panic"}

// String is the name of the budget in errors, metrics and conditions.
func (k Kind) String() string {
	if k < 0 || k >= kinds {
		return fmt.Sprintf("Kind(%d)", int(k))
	}
	return names[k]
}

// Kinds returns all kinds, in order.
func Kinds() []Kind {
	all := make([]Kind, kinds)
	for k := range all {
		all[k] = Kind(k)
	}
	return all
}

// ExceededError reports that the host has exceeded a budget.
type ExceededError struct {
	Kind  Kind
	Limit int64  // of the budget
	What  string // that exceeded it: "the reply to ListPodSandbox"
}

func (e *ExceededError) Error() string {
	if e.Kind == Panic {
		return fmt.Sprintf("budget %s: %s", e.Kind, e.What)
	}
	return fmt.Sprintf("budget %s of %d exceeded by %s", e.Kind, e.Limit, e.What)
}
