package pleg

import (
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// heard is what a look has read of a pod's sandboxes, when it could not be finished yet,
// or failed. It is kept apart from the pod's observation, on which decisions are made.
type heard struct {
	seq uint64 // of the look
	// users are the ranges that the sandboxes hold, by sandbox ID: nil for one that
	// holds none, or that vanished before it was read.
	users map[string]*pod.IDRange
}

// size is what it takes in memory, roughly.
func (h heard) size() int64 {
	n := 0
	for id := range h.users {
		n += ofEntry + len(id)
	}
	return int64(n)
}

// hear keeps which ranges the listed sandboxes of a pod hold, until a look at the pod
// succeeds. read has the status of each that is there.
func (c *Cache) hear(l *listed, read []pod.Sandbox, seq uint64) {
	h := heard{seq: seq, users: make(map[string]*pod.IDRange, len(l.sandboxes))}
	for _, s := range l.sandboxes {
		h.users[s.Id] = nil
		if known := findSandbox(read, s.Id); known != nil {
			h.users[s.Id] = known.Users
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.heard[l.ref.UID]
	if old.seq > seq {
		return
	}
	c.size += h.size() - old.size()
	c.heard[l.ref.UID] = h
}

// unhear drops what a look begun at seq, or an earlier one, has read; mu is held.
func (c *Cache) unhear(uid types.UID, seq uint64) {
	if h, ok := c.heard[uid]; ok && h.seq <= seq {
		c.size -= h.size()
		delete(c.heard, uid)
	}
}

// knowsUsers says whether it is known of each listed sandbox of the pod which range it
// holds: that never changes, however old the look is that has read it.
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

// Users returns the ranges of user IDs that sandboxes hold, those of pods too that could
// not be looked at any further.
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
