package podconfig

import (
	"context"
	"sort"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/pod"
)

// Op is what happened to a pod.
type Op int

const (
	Add       Op = iota // a UID that no source had
	Update              // its spec or metadata changed
	Delete              // it is to terminate gracefully: deletionTimestamp set, or its grace period changed
	Remove              // no source has it any more
	Reconcile           // only its status or resourceVersion changed, perhaps by another writer
)

var opNames = [...]string{"ADD", "UPDATE", "DELETE", "REMOVE", "RECONCILE"}

func (o Op) String() string { return opNames[o] }

// Change is one change of a pod. Pod is the source's object and must not be mutated. A static pod
// has the status of its mirror pod as its Status; if the mirror pod is what changed, Mirror is set
// to it.
type Change struct {
	Op     Op
	Pod    *v1.Pod
	Source string
	Mirror *v1.Pod
}

// PodConfig merges sources. Its methods are safe for concurrent use.
type PodConfig struct {
	// View returns what the node sees of a pod; it does not change its argument. nil: the node sees all
	// of it. It is set before the first pod.
	View func(*v1.Pod) *v1.Pod

	mu        sync.Mutex
	sources   map[string]*source
	withheld  map[string]bool      // manifests whose pod is unknown, see Withhold
	mirrors   map[fullName]*v1.Pod // shown by the api source; they are not pods to run
	forgotten map[types.UID]bool   // UIDs of mirror pods, see ForgetMirror
	queue     []Change
	wake      notify.Signal
	out       chan Change
	mirrored  notify.Signal
}

type source struct {
	pods map[types.UID]*v1.Pod
	seen bool
}

// New makes a PodConfig that expects the named sources.
func New(sources ...string) *PodConfig {
	c := &PodConfig{
		sources:   map[string]*source{},
		mirrors:   map[fullName]*v1.Pod{},
		forgotten: map[types.UID]bool{},
		wake:      notify.New(),
		out:       make(chan Change),
		mirrored:  notify.New(),
	}
	for _, name := range sources {
		c.sources[name] = &source{pods: map[types.UID]*v1.Pod{}}
	}
	return c
}

// Updates returns the stream of changes, in the order of their detection.
func (c *PodConfig) Updates() <-chan Change { return c.out }

// Run delivers changes until ctx ends. Sources never wait for the loop.
func (c *PodConfig) Run(ctx context.Context) error {
	for {
		c.mu.Lock()
		batch := c.queue
		c.queue = nil
		c.mu.Unlock()
		for _, change := range batch {
			select {
			case c.out <- change:
			case <-ctx.Done():
				return nil
			}
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-c.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// Seen records that a source has shown all its pods once.
func (c *PodConfig) Seen(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources[name].seen = true
}

// AllSeen says whether every source has shown all its pods once. Until then, a running pod that no
// source has shown does not count as an orphan.
func (c *PodConfig) AllSeen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sources {
		if !s.seen {
			return false
		}
	}
	return true
}

// SeenBy says whether this source has shown all its pods once. It is true for a source that is not
// expected, as that has no pods.
func (c *PodConfig) SeenBy(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.sources[name]
	return s == nil || s.seen
}

// Set records that the source has the pod. If the source has another pod of the same namespace and
// name under another UID, that one is removed first.
func (c *PodConfig) Set(source string, p *v1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case source != SourceAPI:
	case pod.IsMirror(p):
		c.drop(source, nameOf(p))
		c.setMirror(p)
		return
	default:
		c.dropMirror(nameOf(p))
		p = claimless(p)
	}
	c.set(source, p)
}

func (c *PodConfig) set(name string, p *v1.Pod) {
	p = c.view(p)
	s := c.sources[name]
	old, known := s.pods[p.UID]
	if !known {
		for uid, other := range s.pods {
			if other.Namespace == p.Namespace && other.Name == p.Name {
				delete(s.pods, uid)
				c.push(Change{Op: Remove, Pod: other, Source: name})
			}
		}
	}
	s.pods[p.UID] = p
	if op, changed := compare(old, p); changed {
		c.push(Change{Op: op, Pod: p, Source: name})
	}
}

// Last replaces the stored pod by the last version that the source had of it, before it is dropped:
// a grace period that was shortened last may appear only there.
func (c *PodConfig) Last(name string, p *v1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, known := c.sources[name].pods[p.UID]; known {
		c.sources[name].pods[p.UID] = c.view(claimless(p))
	}
}

func (c *PodConfig) view(p *v1.Pod) *v1.Pod {
	if c.View == nil {
		return p
	}
	return c.View(p)
}

// Drop records that the source no longer has the pod of this name, whatever its UID.
func (c *PodConfig) Drop(source, namespace, podName string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := fullName{namespace, podName}
	if source == SourceAPI {
		c.dropMirror(of)
	}
	c.drop(source, of)
}

func (c *PodConfig) drop(source string, of fullName) {
	s := c.sources[source]
	for uid, p := range s.pods {
		if nameOf(p) == of {
			delete(s.pods, uid)
			c.push(Change{Op: Remove, Pod: p, Source: source})
		}
	}
}

// Pods returns every pod of every source, by namespace and name.
func (c *PodConfig) Pods() []*v1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []*v1.Pod
	for _, s := range c.sources {
		for _, p := range s.pods {
			all = append(all, p)
		}
	}
	sort.Slice(all, func(i, j int) bool {
		if all[i].Namespace != all[j].Namespace {
			return all[i].Namespace < all[j].Namespace
		}
		return all[i].Name < all[j].Name
	})
	return all
}

// Get returns the pod of this UID, or nil.
func (c *PodConfig) Get(uid types.UID) *v1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.sources {
		if p, ok := s.pods[uid]; ok {
			return p
		}
	}
	return nil
}

// refs lists the pods of a source, and for the api source the mirror pods too. The api source's
// comparison and tests use it.
func (c *PodConfig) refs(source string) []pod.Ref {
	c.mu.Lock()
	defer c.mu.Unlock()
	var refs []pod.Ref
	for _, p := range c.sources[source].pods {
		refs = append(refs, refOf(p))
	}
	if source == SourceAPI {
		for _, p := range c.mirrors {
			refs = append(refs, refOf(p))
		}
	}
	return refs
}

// fullName identifies a pod across its lives: a recreated pod has the same one.
type fullName struct{ namespace, name string }

func nameOf(p *v1.Pod) fullName { return fullName{p.Namespace, p.Name} }

func refOf(p *v1.Pod) pod.Ref { return pod.Ref{Namespace: p.Namespace, Name: p.Name, UID: p.UID} }

func (c *PodConfig) push(change Change) {
	c.queue = append(c.queue, change)
	c.wake.Send()
}

// compare says what change turned old into p. It compares the whole object, because
// virtual-kubelet's own comparison misses pod-level resources and all of status.
func compare(old, p *v1.Pod) (Op, bool) {
	switch {
	case old == nil && p.DeletionTimestamp != nil:
		return Add, true // the loop reads the deletionTimestamp of what it adds
	case old == nil:
		return Add, true
	case !sameDeletion(old, p):
		return Delete, true
	case !pod.Equal(old.Spec, p.Spec),
		!pod.Equal(old.Labels, p.Labels),
		!pod.Equal(old.Annotations, p.Annotations),
		old.Generation != p.Generation:
		return Update, true
	case old.ResourceVersion != p.ResourceVersion,
		!pod.Equal(old.Status, p.Status):
		// Two versions with equal statuses can hide one in between: a status that we wrote, that
		// another writer undid, and that the status writer believes is still there.
		return Reconcile, true
	}
	return 0, false
}

func sameDeletion(a, b *v1.Pod) bool {
	return a.DeletionTimestamp.Equal(b.DeletionTimestamp) &&
		pod.Equal(a.DeletionGracePeriodSeconds, b.DeletionGracePeriodSeconds)
}
