package oracle

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/test/labtest"
)

func at(second int) (t time.Time) {
	if second > 0 {
		t = time.Unix(int64(second), 0)
	}
	return t
}

// ran is an instance by the seconds of its start and end; 0: that has not happened.
func ran(uid, container string, created, started, exited int) labtest.Instance {
	return labtest.Instance{UID: uid, Container: container, Sandbox: container == "", Created: at(created), Started: at(started), Exited: at(exited)}
}

func TestOnInstances(t *testing.T) {
	all := func(a, b *labtest.Instance) bool { return a.UID == b.UID }
	for name, c := range map[string]struct {
		instances               []labtest.Instance
		start, atATime, running int // violations of each rule
	}{
		"one after the other": {[]labtest.Instance{ran("u", "a", 1, 2, 3), ran("u", "b", 3, 4, 5)}, 0, 0, 0},
		"other pods":          {[]labtest.Instance{ran("u", "a", 1, 2, 5), ran("v", "a", 1, 2, 0)}, 0, 0, 0},
		"never started":       {[]labtest.Instance{ran("u", "a", 1, 0, 0), ran("u", "a", 2, 3, 4)}, 0, 0, 0},
		"started again":       {[]labtest.Instance{ran("u", "a", 1, 2, 3), ran("u", "a", 3, 4, 5)}, 1, 0, 0},
		"two sandboxes":       {[]labtest.Instance{ran("u", "", 1, 1, 3), ran("u", "", 3, 4, 5)}, 0, 0, 0},
		"two at once":         {[]labtest.Instance{ran("u", "a", 1, 2, 4), ran("u", "b", 3, 4, 5)}, 0, 1, 0},
		"three at once":       {[]labtest.Instance{ran("u", "a", 1, 2, 9), ran("u", "b", 3, 4, 5), ran("u", "c", 6, 7, 8)}, 0, 2, 0},
		"it runs":             {[]labtest.Instance{ran("u", "a", 1, 2, 0)}, 0, 0, 1},
		"it ended later":      {[]labtest.Instance{ran("u", "a", 1, 2, 11)}, 0, 0, 1},
	} {
		if bad := OneStart(c.instances, 0); len(bad) != c.start {
			t.Errorf("OneStart, %s: %q", name, bad)
		}
		if bad := OneStart(c.instances, 1); len(bad) != 0 {
			t.Errorf("OneStart or one more, %s: %q", name, bad)
		}
		if bad := OneAtATime(c.instances, all); len(bad) != c.atATime {
			t.Errorf("OneAtATime, %s: %q", name, bad)
		}
		if bad := NothingRuns(c.instances, "u", at(10)); len(bad) != c.running {
			t.Errorf("NothingRuns, %s: %q", name, bad)
		}
	}
}

func version(phase v1.PodPhase, restarts int32, state v1.ContainerState) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u"}, Status: v1.PodStatus{Phase: phase, StartTime: &metav1.Time{Time: at(1)},
		ContainerStatuses: []v1.ContainerStatus{{Name: "c", ContainerID: "containerd://1", RestartCount: restarts, State: state}}}}
	return p
}

func TestNoStatusBackwards(t *testing.T) {
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	waiting := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	ended := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}
	moved := version(v1.PodRunning, 0, running)
	moved.Status.StartTime = nil
	for name, c := range map[string]struct {
		a, b *v1.Pod
		bad  int
		lost int // violations if the pod lost its sandbox
	}{
		"forth":          {version(v1.PodPending, 0, waiting), version(v1.PodRunning, 0, running), 0, 0},
		"same":           {version(v1.PodRunning, 1, running), version(v1.PodRunning, 1, running), 0, 0},
		"restarts":       {version(v1.PodRunning, 0, running), version(v1.PodRunning, 1, running), 0, 0},
		"phase":          {version(v1.PodRunning, 0, running), version(v1.PodPending, 0, running), 1, 0},
		"start time":     {version(v1.PodRunning, 0, running), moved, 1, 1},
		"fewer":          {version(v1.PodRunning, 2, running), version(v1.PodRunning, 1, running), 1, 1},
		"waits again":    {version(v1.PodRunning, 0, running), version(v1.PodRunning, 0, waiting), 1, 1},
		"rises":          {version(v1.PodRunning, 0, ended), version(v1.PodRunning, 0, running), 1, 1},
		"no status":      {version(v1.PodRunning, 0, running), &v1.Pod{Status: v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: at(1)}}}, 1, 1},
		"final, then on": {version(v1.PodFailed, 0, ended), version(v1.PodRunning, 0, ended), 1, 1},
	} {
		if bad := NoStatusBackwards([]*v1.Pod{c.a, c.b}, false); len(bad) != c.bad {
			t.Errorf("%s: %q", name, bad)
		}
		if bad := NoStatusBackwards([]*v1.Pod{c.a, c.b}, true); len(bad) != c.lost {
			t.Errorf("%s, without its sandbox: %q", name, bad)
		}
	}
}
