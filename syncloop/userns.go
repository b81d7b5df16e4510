package syncloop

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// defaultIDs is how many of the host's user and group IDs a pod with hostUsers: false has by default.
const defaultIDs = 65536

// userRanges assigns each pod with a user namespace a range of host IDs that no other pod has. The
// runtime stores the range in the sandbox's config, so a later process finds which ranges are
// taken, and the pod's next sandbox gets the same one.
type userRanges struct {
	// taken returns the ranges of all existing sandboxes.
	taken func() []pod.IDRange
	// length of a new range. It begins at a multiple of it; the first range is the host's own.
	length uint32
	mu     sync.Mutex
	byPod  map[types.UID]pod.IDRange // of another length if an earlier process had another configuration
}

// take returns the pod's range: that of an earlier sandbox, or the lowest free one.
func (u *userRanges) take(uid types.UID, o *pod.Observed) (pod.IDRange, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if r := usersOf(o); r != nil {
		u.byPod[uid] = *r
		return *r, nil
	}
	if r, ok := u.byPod[uid]; ok {
		return r, nil
	}
	used := map[uint32]bool{}
	for _, r := range slices.AppendSeq(u.taken(), maps.Values(u.byPod)) {
		for i := r.HostID / u.length; uint64(i)*uint64(u.length) < uint64(r.HostID)+uint64(r.Length); i++ {
			used[i] = true
		}
	}
	for i := uint32(1); uint64(i) < 1<<32/uint64(u.length)-1; i++ {
		if !used[i] {
			u.byPod[uid] = pod.IDRange{HostID: i * u.length, Length: u.length}
			return u.byPod[uid], nil
		}
	}
	return pod.IDRange{}, errors.New("could not find an empty slot to allocate a user namespace")
}

// release frees the pod's range when nothing of the pod is left.
func (u *userRanges) release(uid types.UID) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.byPod, uid)
}

// usersOf returns the range of one of the pod's sandboxes, or nil.
func usersOf(o *pod.Observed) *pod.IDRange {
	for i := range o.Sandboxes {
		if r := o.Sandboxes[i].Users; r != nil {
			return r
		}
	}
	return nil
}

// mapUsers sets j.users for a pod with a user namespace, for the configs that the operation makes.
func (j *job) mapUsers(handler string) error {
	if !pod.HasUserNamespace(j.pod) {
		return nil
	}
	var r pod.IDRange
	switch j.op.Kind {
	case plan.OpSandbox:
		if j.loop.cfg.UserNamespaces == nil || !j.loop.cfg.UserNamespaces(handler) {
			if handler != "" {
				return fmt.Errorf("can't set `spec.hostUsers: false`, RuntimeClass handler %q does not support user namespaces", handler)
			}
			return errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
		}
		var err error
		if r, err = j.loop.users.take(j.pod.UID, &j.observed); err != nil {
			return fmt.Errorf("create user namespace: %w", err)
		}
	default: // containers share the sandbox's user namespace
		s := sandboxOf(j.observed, j.op.ID)
		if s == nil || s.Users == nil {
			return errors.New("the sandbox does not report its user namespace")
		}
		r = *s.Users
	}
	j.users = &r
	return nil
}
