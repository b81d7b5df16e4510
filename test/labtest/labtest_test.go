package labtest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestDiff(t *testing.T) {
	before := Snapshot{"mounts": {"/a", "/a", "/b"}, "shims": {"x"}}
	if d := Diff(before, before); len(d) != 0 {
		t.Errorf("of one with itself: %q", d)
	}
	after := Snapshot{"mounts": {"/a", "/b", "/c"}}
	want := []string{"+ mounts: /c", "- mounts: /a", "- shims: x"}
	if d := Diff(before, after); !slices.Equal(d, want) {
		t.Errorf("got %q, want %q", d, want)
	}
}

func version(phase v1.PodPhase, restarts int32, state v1.ContainerState) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Status: v1.PodStatus{Phase: phase,
		ContainerStatuses: []v1.ContainerStatus{{Name: "c", ContainerID: "containerd://1", RestartCount: restarts, State: state}}}}
	return p
}

func TestBackwards(t *testing.T) {
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	waiting := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	ended := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
	for name, c := range map[string]struct {
		a, b *v1.Pod
		bad  int
	}{
		"forth":          {version(v1.PodPending, 0, waiting), version(v1.PodRunning, 0, running), 0},
		"same":           {version(v1.PodRunning, 1, running), version(v1.PodRunning, 1, running), 0},
		"restarts":       {version(v1.PodRunning, 0, running), version(v1.PodRunning, 1, running), 0},
		"phase":          {version(v1.PodRunning, 0, running), version(v1.PodPending, 0, running), 1},
		"fewer":          {version(v1.PodRunning, 2, running), version(v1.PodRunning, 1, running), 1},
		"waits again":    {version(v1.PodRunning, 0, running), version(v1.PodRunning, 0, waiting), 1},
		"rises":          {version(v1.PodRunning, 0, ended), version(v1.PodRunning, 0, running), 1},
		"not told":       {version(v1.PodRunning, 0, running), &v1.Pod{Status: v1.PodStatus{Phase: v1.PodRunning}}, 1},
		"final, then on": {version(v1.PodFailed, 0, ended), version(v1.PodRunning, 0, ended), 1},
	} {
		if bad := backwards(c.a, c.b); len(bad) != c.bad {
			t.Errorf("%s: %q", name, bad)
		}
	}
}

func TestUntil(t *testing.T) {
	n := 0
	if err := Until(t.Context(), time.Minute, "third", func(context.Context) error {
		if n++; n < 3 {
			return errors.New("not yet")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	cause := errors.New("never")
	if err := Until(t.Context(), time.Millisecond, "x", func(context.Context) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("the last error is lost: %v", err)
	}
	if err := Holds(t.Context(), time.Minute, "x", func(context.Context) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("a condition that fails held: %v", err)
	}
}
