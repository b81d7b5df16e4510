package pleg

import (
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// Cache holds the latest observation of each pod. Reads never block on the runtime.
type Cache struct {
	seq atomic.Uint64

	mu   sync.Mutex
	pods map[types.UID]pod.Observed
	// named has the UIDs of pods by their name; keep and drop maintain it.
	named map[name]map[types.UID]bool
	// The last full relist found nothing for a pod that has no entry in pods.
	allSeq   uint64
	allAt    time.Time
	allStale string
	foreign  int
	heard    map[types.UID]heard // of pods whose last look did not succeed
	size     int64               // of pods and heard, approximate bytes
}

// name is the name of a pod, which several pods may have had.
type name struct{ namespace, name string }

func nameOf(r pod.Ref) name { return name{r.Namespace, r.Name} }

func newCache() *Cache {
	return &Cache{pods: map[types.UID]pod.Observed{}, named: map[name]map[types.UID]bool{}, heard: map[types.UID]heard{}}
}

// NextSeq returns a new sequence number. Every look that begins later has a larger one.
func (c *Cache) NextSeq() uint64 { return c.seq.Add(1) }

// Get returns the latest observation of the pod. Its Seq is zero before the first look.
func (c *Cache) Get(uid types.UID) pod.Observed {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.get(uid)
}

func (c *Cache) get(uid types.UID) pod.Observed {
	if o, ok := c.pods[uid]; ok {
		if o.Stale == "" {
			o.Stale = c.allStale
		}
		return o
	}
	return pod.Observed{Ref: pod.Ref{UID: uid}, Seq: c.allSeq, At: c.allAt, Stale: c.allStale}
}

// Foreign returns how many sandboxes on the runtime are not ours.
func (c *Cache) Foreign() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.foreign
}

// Known returns the pods that have a sandbox or container on the runtime.
func (c *Cache) Known() []pod.Ref {
	c.mu.Lock()
	defer c.mu.Unlock()
	refs := make([]pod.Ref, 0, len(c.pods))
	for _, o := range c.pods {
		if len(o.Sandboxes)+len(o.Containers) > 0 {
			refs = append(refs, o.Ref)
		}
	}
	return refs
}

// Named returns those of Known that have this name. Its cost does not grow with the other pods.
func (c *Cache) Named(namespace, podName string) (refs []pod.Ref) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid := range c.named[name{namespace, podName}] {
		if o := c.pods[uid]; len(o.Sandboxes)+len(o.Containers) > 0 {
			refs = append(refs, o.Ref)
		}
	}
	return refs
}

// put stores o unless the cache has a newer observation. It reports whether it stored o, and whether
// the runtime answers again after a period in which it did not.
func (c *Cache) put(o pod.Observed) (kept, seesAgain bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	seesAgain = c.allStale != ""
	c.allStale = ""
	if old, ok := c.pods[o.Ref.UID]; ok && old.Seq > o.Seq {
		return false, seesAgain
	}
	// A pod that a later full relist did not find stays absent.
	if _, ok := c.pods[o.Ref.UID]; !ok && c.allSeq > o.Seq {
		return false, seesAgain
	}
	c.keep(o)
	c.unhear(o.Ref.UID, o.Seq)
	return true, seesAgain
}

// keep replaces the pod's observation with o; the caller holds mu.
func (c *Cache) keep(o pod.Observed) {
	c.drop(o.Ref.UID)
	c.size += size(o)
	c.pods[o.Ref.UID] = o
	n := nameOf(o.Ref)
	if c.named[n] == nil {
		c.named[n] = map[types.UID]bool{}
	}
	c.named[n][o.Ref.UID] = true
}

// drop removes the pod's observation, if there is one; the caller holds mu.
func (c *Cache) drop(uid types.UID) {
	old, ok := c.pods[uid]
	if !ok {
		return
	}
	c.size -= size(old)
	delete(c.pods, uid)
	n := nameOf(old.Ref)
	if delete(c.named[n], uid); len(c.named[n]) == 0 {
		delete(c.named, n)
	}
}

// sizeWith returns the size that the cache would have with o.
func (c *Cache) sizeWith(o pod.Observed) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := c.size + size(o) - c.heard[o.Ref.UID].size()
	if old, ok := c.pods[o.Ref.UID]; ok {
		n -= size(old)
	}
	return n
}

// stale marks everything stale and reports whether it was not already.
func (c *Cache) stale(why string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	news := c.allStale == ""
	c.allStale = why
	return news
}

// relisted records that a full look begun at seq saw the pods in seen and no others. It returns the
// pods that vanished, including pods whose observation was stale or had not ended, and whether the runtime
// answers again after a period in which it did not. Pods with a later look stay.
func (c *Cache) relisted(seq uint64, at time.Time, seen map[types.UID]bool, foreign int) (gone []pod.Ref, seesAgain bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, o := range c.pods {
		if !seen[uid] && o.Seq <= seq {
			c.drop(uid)
			if len(o.Sandboxes)+len(o.Containers) > 0 || o.Stale != "" || o.Seq == 0 {
				gone = append(gone, o.Ref)
			}
		}
	}
	for uid := range c.heard {
		if !seen[uid] {
			c.unhear(uid, seq)
		}
	}
	// The first look at a pod may have begun before this list, and not have ended: the runtime has the
	// pod, and what it has of it is not known.
	for uid := range seen {
		if _, ok := c.pods[uid]; !ok {
			c.keep(pod.Observed{Ref: pod.Ref{UID: uid}}) // Seq 0: as before any look
		}
	}
	// Read allStale now, not at the start of the relist: another look may have failed since.
	seesAgain = c.allStale != ""
	c.allSeq, c.allAt, c.allStale, c.foreign = seq, at, "", foreign
	return gone, seesAgain
}

// staleOne marks one pod's observation (or its absence) stale, unless a newer look has succeeded.
// It reports whether it was not already stale.
func (c *Cache) staleOne(ref pod.Ref, seq uint64, why string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.pods[ref.UID]
	if !ok {
		o = pod.Observed{Ref: ref, Seq: seq}
	}
	if o.Seq > seq {
		return false
	}
	news := o.Stale == ""
	o.Stale = why
	c.keep(o)
	return news
}

// StaleAlone reports whether the pod's own last look failed: the runtime answers, but not about this
// pod.
func (c *Cache) StaleAlone(uid types.UID) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pods[uid].Stale != ""
}

// touch makes an unchanged observation as new as the look that confirmed it. was is the Seq of the
// observation that the look compared. If another observation has replaced that one meanwhile, touch
// returns false: the look did not confirm it.
func (c *Cache) touch(uid types.UID, was, seq uint64, at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, ok := c.pods[uid]
	if !ok || o.Seq != was {
		return false
	}
	if o.Seq < seq {
		o.Seq, o.At = seq, at
		c.pods[uid] = o
	}
	return true
}
