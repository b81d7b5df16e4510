package syncloop

import (
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// inbox is a worker's mailbox. It holds one mail, into which everything is merged until the worker
// takes it: the newest pod wins, a request to end is never replaced by a milder one, and no outcome
// is lost.
type inbox struct {
	mu     sync.Mutex
	mail   mail
	notify notify.Signal
}

// mail is everything that waits for one worker.
type mail struct {
	pod       *v1.Pod            // the newest, or nil
	terminate *plan.Terminate    // the most urgent, or nil
	absent    bool               // no source has the pod any more
	volumes   bool               // a ConfigMap, Secret or token that the pod mounts has changed
	unwritten bool               // a volume refresh did not reach the host
	refreshed *error             // the result of a volume refresh that reached the host
	outcomes  []finished         // operations that ended, oldest first
	answer    *allocation.Answer // the newest of the allocation manager, or nil
}

// finished is an operation's outcome, and the sequence number that an observation must have to show
// its effect.
type finished struct {
	plan.Outcome
	needSeq uint64
	image   *pulled // the images that OpPull made present
}

func newInbox() *inbox { return &inbox{notify: notify.New()} }

// put merges into the mail and wakes the worker; it never blocks.
func (b *inbox) put(merge func(*mail)) {
	b.mu.Lock()
	merge(&b.mail)
	b.mu.Unlock()
	b.wake()
}

// wake makes the worker decide again.
func (b *inbox) wake() { b.notify.Send() }

// take empties the inbox.
func (b *inbox) take() mail {
	b.mu.Lock()
	defer b.mu.Unlock()
	m := b.mail
	b.mail = mail{}
	return m
}
