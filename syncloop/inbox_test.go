package syncloop

import (
	"fmt"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

func versioned(rv int) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", ResourceVersion: fmt.Sprint(rv)}}
}

// Mail that arrives before the worker takes it is merged: the newest pod, the most urgent end,
// absence, and every outcome.
func TestInboxMerges(t *testing.T) {
	now := time.Now()
	b := newInbox()
	stern := &plan.Terminate{At: now, Grace: time.Second, Cause: plan.CauseFinished, Reason: "Evicted"}
	mild := &plan.Terminate{At: now, Grace: time.Minute, Cause: plan.CauseDeleted}
	for i, end := range []*plan.Terminate{nil, stern, mild, nil} {
		b.put(func(m *mail) {
			m.pod, m.terminate = versioned(i), plan.Merge(m.terminate, end)
			m.absent = m.absent || i == 2
		})
	}
	for i := range 3 {
		b.put(func(m *mail) { m.outcomes = append(m.outcomes, finished{needSeq: uint64(i)}) })
	}
	b.put(func(m *mail) { m.volumes = true })
	select {
	case <-b.notify:
	default:
		t.Fatal("the worker was not woken")
	}
	m := b.take()
	if m.pod.ResourceVersion != "3" || !m.absent || !m.volumes {
		t.Errorf("pod %s, absent %v, volumes %v", m.pod.ResourceVersion, m.absent, m.volumes)
	}
	if m.terminate.Grace != time.Second || m.terminate.Cause != plan.CauseDeleted || m.terminate.Reason != "Evicted" {
		t.Errorf("end %+v", *m.terminate)
	}
	if stern.Cause != plan.CauseFinished {
		t.Error("a request was changed after it was put in")
	}
	for i, f := range m.outcomes {
		if f.needSeq != uint64(i) {
			t.Errorf("outcome %d came as number %d", f.needSeq, i)
		}
	}
	if len(m.outcomes) != 3 {
		t.Errorf("%d outcomes", len(m.outcomes))
	}
	if left := b.take(); left.pod != nil || left.outcomes != nil || left.terminate != nil || left.absent {
		t.Errorf("taken twice: %+v", left)
	}
}

// Many writers and one reader: every outcome arrives once, and a writer never waits for the reader.
func TestInboxLosesNothing(t *testing.T) {
	const writers, each = 8, 200
	b := newInbox()
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for i := range each {
				b.put(func(m *mail) { m.outcomes = append(m.outcomes, finished{needSeq: uint64(w*each + i)}) })
			}
		})
	}
	seen := map[uint64]bool{}
	late := time.After(20 * time.Second)
	for len(seen) < writers*each {
		select {
		case <-b.notify:
		case <-late:
			t.Fatalf("only %d of %d outcomes came", len(seen), writers*each)
		}
		for _, f := range b.take().outcomes {
			if seen[f.needSeq] {
				t.Errorf("outcome %d came twice", f.needSeq)
			}
			seen[f.needSeq] = true
		}
	}
	all.Wait()
}

func TestGrace(t *testing.T) {
	seconds := func(n int64) *int64 { return &n }
	for _, tc := range []struct {
		deletion, spec *int64
		want           time.Duration
	}{
		{nil, nil, 30 * time.Second},
		{nil, seconds(7), 7 * time.Second},
		{seconds(3), seconds(7), 3 * time.Second},
		{seconds(0), seconds(7), time.Second},
		{nil, seconds(0), time.Second},
	} {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionGracePeriodSeconds: tc.deletion}, Spec: v1.PodSpec{TerminationGracePeriodSeconds: tc.spec}}
		if got := graceOf(p); got != tc.want {
			t.Errorf("grace of %v, %v: %s, want %s", tc.deletion, tc.spec, got, tc.want)
		}
	}
}

// A deletion that began before this process counts from its own beginning, but never from a time
// that two clocks which disagree make impossible.
func TestEndingOfAnAdoptedPod(t *testing.T) {
	now := time.Unix(1000, 0)
	grace := int64(30)
	for _, tc := range []struct {
		name string
		by   time.Time // deletionTimestamp
		want time.Time // At
	}{
		{"begun 10 s ago", now.Add(20 * time.Second), now.Add(-10 * time.Second)},
		{"over long ago", now.Add(-time.Hour), now.Add(-30 * time.Second)},
		{"begun in the future", now.Add(time.Hour), now},
	} {
		at := metav1.NewTime(tc.by)
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &at, DeletionGracePeriodSeconds: &grace}}
		if got := ending(p, now, true); !got.At.Equal(tc.want) || got.Grace != 30*time.Second {
			t.Errorf("%s: at %s, grace %s", tc.name, got.At, got.Grace)
		}
	}
	if ending(&v1.Pod{}, now, true) != nil {
		t.Error("a pod that no one ends is ended")
	}
}

// The event depends on the cause of a stop, not on the wording of its reason.
func TestKilling(t *testing.T) {
	always := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, Containers: []v1.Container{{Name: "app"}}}}
	never := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyNever, Containers: []v1.Container{{Name: "app"}}}}
	first := &v1.Pod{Spec: v1.PodSpec{RestartPolicy: v1.RestartPolicyAlways, InitContainers: []v1.Container{{Name: "app"}}}}
	for _, tc := range []struct {
		pod   *v1.Pod
		cause plan.StopCause
		want  string
	}{
		{always, plan.StopPodEnds, "Stopping container app"},
		{always, plan.StopNone, "Stopping container app"},
		{always, plan.StopLivenessProbe, "Container app failed liveness probe, will be restarted"},
		{never, plan.StopLivenessProbe, "Container app failed liveness probe"},
		{always, plan.StopStartupProbe, "Container app failed startup probe, will be restarted"},
		{always, plan.StopDefinition, "Container app definition changed, will be restarted"},
		{always, plan.StopResize, "Container app resize requires restart"},
		{first, plan.StopStartupProbe, "Init container app failed startup probe"},
		{first, plan.StopPodEnds, "Stopping container app"},
		{always, plan.StopPostStart, "FailedPostStartHook"},
	} {
		for _, words := range []string{"", "reworded", "PostStartHookError", "Container app failed liveness probe: secret output"} {
			if got := killing(tc.pod, plan.Operation{Container: "app", Cause: tc.cause, Reason: words}); got != tc.want {
				t.Errorf("cause %d in the words %q: %q, want %q", tc.cause, words, got, tc.want)
			}
		}
	}
}

// A worker decides on an answer for the newest pod of its own life, and on no other.
func TestAnswerForAnOlderPod(t *testing.T) {
	w := newWorker(&Loop{allocation: allocation.New(allocation.Config{})}, pod.Ref{}, false)
	answer := func(p *v1.Pod, version uint64) {
		w.answered(&allocation.Answer{Version: version, Pod: p}, time.Now())
	}
	first, second, former := versioned(1), versioned(2), versioned(0)
	if answer(former, 7); w.pod != nil {
		t.Error("an answer of a former life is taken")
	}
	for i, p := range []*v1.Pod{first, second} {
		w.api = p
		if w.ask() {
			t.Errorf("%d: it does not wait for the answer", i)
		}
		before := w.pod
		if answer(former, w.asked.version-1); w.pod != before || w.ask() {
			t.Errorf("%d: an answer for an older pod is taken", i)
		}
		if answer(p, w.asked.version); w.pod != p || !w.ask() {
			t.Errorf("%d: the answer is not taken", i)
		}
	}
}
