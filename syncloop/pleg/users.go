package pleg

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// heard are the user ID ranges that an unfinished or failed look has read of a pod's sandboxes. The
// cache keeps them apart from the pod's observation, the basis of decisions.
type heard struct {
	seq uint64 // of the look
	// users are the known user ID ranges of the sandboxes, by sandbox ID: nil for a sandbox that has
	// none, or that vanished before it was read.
	users map[string]*pod.IDRange
}

// size returns its approximate size in memory.
func (h heard) size() int64 {
	n := 0
	for id := range h.users {
		n += ofEntry + len(id)
	}
	return int64(n)
}

// hear records the user ID ranges of the pod's listed sandboxes, until a look at the pod succeeds.
// read has the status of each sandbox that still exists.
func (c *Cache) hear(l *listed, read []pod.Sandbox, seq uint64) {
	users := make(map[string]*pod.IDRange, len(l.sandboxes))
	for _, s := range l.sandboxes {
		users[s.Id] = nil
		if known := findSandbox(read, s.Id); known != nil {
			users[s.Id] = known.Users
		}
	}
	c.record(l.ref.UID, heard{seq, users})
}

// hearList records the ranges that the runtime's list shows, and those that an earlier look has read
// of the same sandboxes. So the cache has the range of a sandbox even if its status hangs.
func (c *Cache) hearList(l *listed, seq uint64) {
	c.mu.Lock()
	before := c.heard[l.ref.UID].users
	c.mu.Unlock()
	users := make(map[string]*pod.IDRange, len(l.sandboxes))
	for _, s := range l.sandboxes {
		r, ok := pod.ParseUsers(s.Annotations[pod.AnnotationUsers])
		if !ok {
			r, ok = before[s.Id]
		}
		if ok {
			users[s.Id] = r
		}
	}
	c.record(l.ref.UID, heard{seq, users})
}

func (c *Cache) record(uid types.UID, h heard) {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.heard[uid]
	if old.seq > h.seq {
		return
	}
	c.size += h.size() - old.size()
	c.heard[uid] = h
}

// unhear drops the ranges of looks that began at or before seq; the caller holds mu.
func (c *Cache) unhear(uid types.UID, seq uint64) {
	if h, ok := c.heard[uid]; ok && h.seq <= seq {
		c.size -= h.size()
		delete(c.heard, uid)
	}
}

// knowsUsers reports whether the cache has the range of every listed sandbox of the pod. A sandbox's
// range never changes, so a look of any age counts.
func (c *Cache) knowsUsers(l *listed) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	o, h := c.pods[l.ref.UID], c.heard[l.ref.UID]
	for _, s := range l.sandboxes {
		if _, ok := h.users[s.Id]; !ok && findSandbox(o.Sandboxes, s.Id) == nil {
			return false
		}
	}
	return true
}

// Users returns the user ID ranges of all sandboxes, including those of pods whose look did not
// finish.
func (c *Cache) Users() []pod.IDRange {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []pod.IDRange
	for _, o := range c.pods {
		for i := range o.Sandboxes {
			if r := o.Sandboxes[i].Users; r != nil {
				out = append(out, *r)
			}
		}
	}
	for _, h := range c.heard {
		for _, r := range h.users {
			if r != nil {
				out = append(out, *r)
			}
		}
	}
	return out
}
