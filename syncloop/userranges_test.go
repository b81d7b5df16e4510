package syncloop

import (
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// TestUserRangesOfOtherLengths: after a change of idsPerPod, a pod keeps the range that it has, even while it
// has no sandbox, and no new range has an ID of it.
func TestUserRangesOfOtherLengths(t *testing.T) {
	const unit = 65536
	old := pod.IDRange{HostID: 3 * unit, Length: unit}
	wide := pod.IDRange{HostID: 4 * unit, Length: 4 * unit}
	taken := []pod.IDRange{old, wide}
	u := &userRanges{taken: func() []pod.IDRange { return taken }, length: 2 * unit, byPod: map[types.UID]pod.IDRange{}}
	take := func(uid types.UID, o *pod.Observed) pod.IDRange {
		r, err := u.take(uid, o)
		testutil.Must(t, err)
		return r
	}
	if got := take("old", &pod.Observed{Sandboxes: []pod.Sandbox{{Users: &old}}}); got != old {
		t.Errorf("the pod with a sandbox gets %+v", got)
	}
	taken = []pod.IDRange{wide} // the sandbox of the first pod is replaced
	if got := take("old", &pod.Observed{}); got != old {
		t.Errorf("its next sandbox gets %+v", got)
	}
	// 2*unit to 4*unit overlaps the first pod, 4*unit to 8*unit the second.
	if got, want := take("new", &pod.Observed{}), (pod.IDRange{HostID: 8 * unit, Length: 2 * unit}); got != want {
		t.Errorf("a new pod gets %+v, want %+v", got, want)
	}
	u.release("old")
	if got, want := take("next", &pod.Observed{}), (pod.IDRange{HostID: 2 * unit, Length: 2 * unit}); got != want {
		t.Errorf("after the first pod has gone, a new one gets %+v, want %+v", got, want)
	}
}

// TestUserRangesEnd: the first range is the host's, and the last has the number that is no ID.
func TestUserRangesEnd(t *testing.T) {
	u := &userRanges{taken: func() []pod.IDRange { return nil }, length: 1 << 30, byPod: map[types.UID]pod.IDRange{}}
	for i, uid := range []types.UID{"a", "b"} {
		if r, err := u.take(uid, &pod.Observed{}); err != nil || r != (pod.IDRange{HostID: uint32(i+1) << 30, Length: 1 << 30}) {
			t.Errorf("%s: %+v, %v", uid, r, err)
		}
	}
	if r, err := u.take("c", &pod.Observed{}); err == nil {
		t.Errorf("c gets %+v", r)
	}
}
