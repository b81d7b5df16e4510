// Package allocation is the node's allocation manager. It admits pods, keeps the CPU and memory
// that it has allocated to each pod, and decides on resizes.
//
// One goroutine, Run, owns all of it. A worker asks about its pod (Ask), and gets an Answer now and
// whenever it changes (Config.Deliver). The manager waits for no worker: the functions of Config
// look or post, and calls to the API server and to the host run in goroutines of their own.
package allocation

import (
	"context"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// Config has the manager's inputs and its calls to other parts. Run's goroutine calls the functions; none may wait
// for the manager. Reread and Files are used aside.
type Config struct {
	Policy admit.Policy
	// Node returns the node that pods are admitted against; nil: every pod that Policy allows is
	// admitted. Reread reads its labels and taints from the API server; nil: they are up to date.
	Node   func() admit.Node
	Reread func(context.Context) (admit.Node, error)
	// Allocatable limits resizes. A resource that is missing has no limit.
	Allocatable func() v1.ResourceList
	// FixedPodResources: a resize of pod-level resources is infeasible
	// (InPlacePodLevelResourcesVerticalScaling).
	FixedPodResources bool
	Sources           Sources
	Observed          func(types.UID) pod.Observed
	// Ended reports whether the pod has no worker, or has ended as far as its worker knows.
	Ended func(types.UID) bool
	// Grace is the grace period of a pod.
	Grace func(*v1.Pod) time.Duration
	// Deliver puts an answer into the inbox of the pod's worker.
	Deliver func(types.UID, Answer)
	Event   func(p *v1.Pod, kind, reason, message string)
	// Preempted is called for each pod that is preempted, with the first resource that was lacking.
	// Resolved is called for each deferred resize that waits no longer: how is Accepted, Reverted or
	// Terminated, trigger what caused the last attempt, and waited how long it was deferred.
	// Infeasible is called for each resize that the node never makes, with the kubelet's word for the
	// cause. Nil: no one needs them.
	Preempted  func(lacking v1.ResourceName)
	Resolved   func(p *v1.Pod, how, trigger string, waited time.Duration)
	Infeasible func(cause string)
	// Files and Root are where the checkpoint of resizes is.
	Files Files
	Root  string
}

// Sources are the sources of pods; podconfig.PodConfig implements it.
type Sources interface {
	Pods() []*v1.Pod
	Get(types.UID) *v1.Pod
	SeenBy(source string) bool
}

// Answer is the manager's decision on a pod. It never changes after delivery.
type Answer struct {
	// Version is the number that Ask returned for the newest question that this answers.
	Version uint64
	// Pod is the pod of the request, with its allocation.
	Pod *v1.Pod
	// Allocated is the allocation, serialized; "" while the manager does not have it. Then no
	// container may start.
	Allocated string
	// Restored is the state that an earlier process recorded of the pod; nil while the manager does
	// not have the allocation.
	Restored *Restored
	// Accepted is the generation of the last accepted resize; 0: none.
	Accepted int64
	// Pending is the PodResizePending condition of a resize that is deferred or infeasible, or nil.
	Pending *v1.PodCondition
	// Decided means that the pod is admitted, or rejected if Rejection is set.
	Decided   bool
	Rejection *admit.Rejection
	// Waits means that pods that were preempted for this one have not ended. It must not start.
	Waits bool
	// Preempted is when the pod was preempted for a critical one; zero: it was not.
	Preempted time.Time
}

// Complete reports whether nothing is left to find out unless the pod, or another one, changes.
func (a *Answer) Complete() bool { return a.Decided && a.Allocated != "" && !a.Waits }

// resizeRetry is how often deferred resizes are retried although no known input has changed;
// retryPeriod is the interval between attempts at decisions that it could not make.
const (
	resizeRetry = 3 * time.Minute
	retryPeriod = time.Second
)

// How a deferred resize ends, in the kubelet's words.
const (
	Accepted   = "accepted"
	Reverted   = "reverted"
	Terminated = "terminated"
)

// What causes another attempt at deferred resizes, in the kubelet's words.
const (
	podResized    = "pod_resized"
	podUpdated    = "pod_updated"
	podsAdded     = "pods_added"
	podsRemoved   = "pods_removed"
	podTerminated = "pod_terminated"
	periodic      = "periodic_retry"
)

// Manager is the allocation manager. New makes it, Run runs it.
type Manager struct {
	cfg    Config
	wake   notify.Signal
	saving chan struct{} // has the one write of the checkpoint that is under way

	mu       sync.Mutex // of the inbox
	messages []func(context.Context)
	asked    uint64

	// ── owned by Run ──
	pods       map[types.UID]*podState // those with a worker
	admissions map[types.UID]*admission
	labels     nodeLabels
	resizeDue  bool   // a resize may be possible, or withdrawn
	trigger    string // why: the last cause
	checkpoint record
	loaded     bool           // the checkpoint has been read
	aside      sync.WaitGroup // goroutines of calls to the API server and the host
}

// podState is the manager's state of a pod that has a worker.
type podState struct {
	version uint64 // of the last question
	wanted  *v1.Pod
	shown   *v1.Pod // wanted, with the allocated resources
	sent    Answer
	owed    bool // wanted is new since sent
	decided bool // the pod is admitted or rejected, or an earlier process admitted it
	ended   bool // the pod uses nothing any more
	resizes
}

// New makes a Manager.
func New(c Config) *Manager {
	if c.Preempted == nil {
		c.Preempted = func(v1.ResourceName) {}
	}
	if c.Resolved == nil {
		c.Resolved = func(*v1.Pod, string, string, time.Duration) {}
	}
	if c.Infeasible == nil {
		c.Infeasible = func(string) {}
	}
	return &Manager{cfg: c, wake: notify.New(), saving: make(chan struct{}, 1), pods: map[types.UID]*podState{},
		admissions: map[types.UID]*admission{}, labels: nodeLabels{waiting: map[types.UID]bool{}}}
}

// Run decides and answers until ctx ends. It returns when its calls to others have ended.
func (m *Manager) Run(ctx context.Context) error {
	defer m.aside.Wait()
	m.load(ctx)
	deferred := time.NewTicker(resizeRetry)
	defer deferred.Stop()
	for again := false; ; {
		var retry <-chan time.Time
		if again {
			retry = time.After(retryPeriod)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		case <-retry:
		case <-deferred.C:
			m.retry(periodic) // there may be room that no message announced
		}
		for _, message := range m.take() {
			message(ctx)
		}
		now := time.Now()
		m.restore()
		m.resize(now)
		m.admit(ctx, now)
		again = m.answer()
	}
}

// Ask asks about a pod as its source has it. An Answer with a lower Version than the returned one
// is for an older pod, or for a former life of the UID.
func (m *Manager) Ask(p *v1.Pod) (version uint64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked++
	version = m.asked
	m.messages = append(m.messages, func(context.Context) { m.ask(p, version) })
	m.wake.Send()
	return version
}

// Ended says that the pod uses nothing any more.
func (m *Manager) Ended(uid types.UID) {
	m.post(func(context.Context) {
		if e := m.pods[uid]; e != nil && !e.ended {
			e.ended, e.decided = true, true
			m.resolve(e, Terminated, time.Now())
			m.retry(podTerminated)
		}
	})
}

// Gone says that the pod's worker ends.
func (m *Manager) Gone(uid types.UID) {
	m.post(func(context.Context) {
		if e := m.pods[uid]; e != nil {
			m.resolve(e, Terminated, time.Now())
		}
		delete(m.pods, uid)
		m.retry(podsRemoved)
		if a := m.admissions[uid]; a != nil {
			a.ended = true
		}
	})
}

// retry examines the waiting resizes again.
func (m *Manager) retry(cause string) { m.resizeDue, m.trigger = true, cause }

// post puts a message into the inbox; it never blocks.
func (m *Manager) post(message func(context.Context)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.messages = append(m.messages, message)
	m.wake.Send()
}

func (m *Manager) take() []func(context.Context) {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := m.messages
	m.messages = nil
	return all
}

func (m *Manager) ask(p *v1.Pod, version uint64) {
	e := m.pods[p.UID]
	if e == nil {
		if a := m.admissions[p.UID]; a != nil && a.ended {
			delete(m.admissions, p.UID) // a static pod that was removed and is back
		}
		e = &podState{}
		m.pods[p.UID] = e
	}
	e.version = version
	if e.wanted == p {
		return
	}
	if e.wanted != nil {
		m.reportLacking(e.wanted, p)
	}
	e.wanted, e.shown, e.owed = p, p, true
	if e.known {
		m.request(e)
	}
}

// answer delivers the answers that have changed. It reports whether some are not complete, so that
// the manager must look again.
func (m *Manager) answer() (again bool) {
	again = m.resizeDue
	for uid, e := range m.pods {
		a := Answer{Version: e.sent.Version, Pod: e.shown, Allocated: e.allocated, Restored: e.restored,
			Accepted: e.accepted, Pending: e.pending, Decided: e.decided}
		if d := m.admissions[uid]; d != nil {
			a.Rejection, a.Waits, a.Preempted = d.rejection, len(d.after) > 0, d.preempted
		}
		if e.owed || a != e.sent {
			a.Version, e.owed = e.version, false
			e.sent = a
			m.cfg.Deliver(uid, a)
		}
		again = again || !e.ended && !a.Complete()
	}
	return again
}

// do runs a call that may take long in a goroutine of its own. Its result comes back by post.
func (m *Manager) do(ctx context.Context, call func()) {
	m.aside.Go(func() {
		defer budget.From(ctx).Recover("a call of the allocation manager")
		call()
	})
}
