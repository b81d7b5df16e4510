package syncloop_test

import (
	"context"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// asks gives the pod a CPU request, and an age, which decides the order of admission.
func asks(cpu string, born int64) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.CreationTimestamp = metav1.NewTime(time.Unix(born, 0))
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}
	}
}

func oneCPU() *admit.Node {
	return &admit.Node{Name: "node", OS: "linux", Allocatable: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("1"), v1.ResourcePods: resource.MustParse("10")}}
}

// A pod that does not fit beside the admitted ones is rejected as by a kubelet. A rejected pod
// takes no room, one that has ended frees its room, and a restart changes neither.
func TestRoomOnTheNode(t *testing.T) {
	w := newParallelWorld(t)
	w.admitting = oneCPU()
	// All of them are created before the node is up: it admits the oldest first.
	w.api.create(with(newPod("second"), asks("600m", 200)))
	w.api.create(with(newPod("third"), asks("300m", 300)))
	w.api.create(with(newPod("first"), asks("600m", 100)))
	w.up()
	w.untilReady("first")
	w.untilReady("third")
	w.until("the pod fails", func() bool { return w.api.pod("second").Status.Phase == v1.PodFailed })
	const why = "Node didn't have enough resource: cpu, requested: 600, used: 600, capacity: 1000"
	check := func() {
		t.Helper()
		st := w.api.pod("second").Status
		if st.Reason != "OutOfcpu" || st.Message != "Pod was rejected: "+why || len(st.ContainerStatuses) != 0 {
			t.Errorf("the status is %+v", st)
		}
	}
	check()
	w.wantEvent("Warning OutOfcpu " + why)
	w.down()
	w.admitting.Allocatable[v1.ResourceCPU] = resource.MustParse("500m") // running pods are not admitted again
	w.up()
	w.untilSettled("first")
	w.untilSettled("third")
	check()
	w.down()
	w.admitting = oneCPU()
	w.up()
	w.untilSettled("first")
	w.api.create(with(newPod("fourth"), asks("200m", 400)))
	w.until("the fourth fails beside what was adopted", func() bool { return w.api.pod("fourth").Status.Phase == v1.PodFailed })
	if m := w.api.pod("fourth").Status.Message; !strings.Contains(m, "requested: 200, used: 900, capacity: 1000") {
		t.Errorf("the message is %q", m)
	}
	w.api.delete("first", 1)
	w.until("the first is gone", func() bool { return w.api.pod("first") == nil })
	w.createReady(with(newPod("fifth"), asks("600m", 500)))
	w.end(1, "second", "third", "fourth", "fifth")
}

// A critical pod starts in place of another one, after that one has ended.
func TestRoomForACriticalPod(t *testing.T) {
	w := newParallelWorld(t)
	w.admitting = oneCPU()
	w.up()
	w.createReady(with(newPod("plain"), asks("600m", 100)))
	w.createReady(with(with(newPod("critical"), asks("800m", 200)), func(p *v1.Pod) {
		n := int32(2_000_001_000)
		p.Spec.Priority = &n
	}))
	w.until("the other has failed", func() bool { return w.api.pod("plain").Status.Phase == v1.PodFailed })
	st := w.api.pod("plain").Status
	var target *v1.PodCondition
	for i := range st.Conditions {
		if st.Conditions[i].Type == v1.DisruptionTarget {
			target = &st.Conditions[i]
		}
	}
	if st.Reason != "Preempting" || st.Message != "Preempted in order to admit critical pod" || target == nil ||
		target.Reason != v1.PodReasonTerminationByKubelet || target.Message != "Pod was preempted by Kubelet to accommodate a critical pod." {
		t.Errorf("the status is %+v", st)
	}
	w.wantEvent("Warning Preempting Preempted in order to admit critical pod")
	stopped, started := -1, -1
	for i, e := range w.rt.Log() {
		switch {
		case e.Op == fake.OpExit && strings.Contains(e.Pod, "plain"):
			stopped = i
		case e.Op == fake.OpStart && strings.Contains(e.Pod, "critical"):
			started = i
		}
	}
	if stopped < 0 || started < stopped {
		t.Errorf("the critical pod starts at %d, the other stops at %d", started, stopped)
	}
	w.end(1, "plain", "critical")
}

func critical(p *v1.Pod) {
	n := int32(2_000_001_000)
	p.Spec.Priority = &n
}

// Two pods that arrive together are admitted one after the other: the critical one preempts the
// other, whichever worker comes first.
func TestRoomForACriticalPodOfTheSameBatch(t *testing.T) {
	w := newParallelWorld(t)
	w.admitting = oneCPU()
	w.api.create(with(with(newPod("a-critical"), asks("800m", 200)), critical)) // its worker comes first
	w.api.create(with(newPod("plain"), asks("600m", 100)))
	w.up()
	w.untilReady("a-critical")
	w.until("the other has failed", func() bool { return w.api.pod("plain").Status.Phase == v1.PodFailed })
	if st := w.api.pod("plain").Status; st.Reason != "Preempting" || st.Message != "Preempted in order to admit critical pod" {
		t.Errorf("the status is %+v", st)
	}
	running := map[string]bool{}
	for _, e := range w.rt.Log() {
		switch e.Op {
		case fake.OpStart:
			running[e.Pod] = true
		case fake.OpExit:
			delete(running, e.Pod)
		}
		if len(running) > 1 {
			t.Errorf("%v ran side by side", running)
		}
	}
	w.end(1, "plain", "a-critical")
}

// A preempted pod takes no room while it ends, but no pod starts before it has ended. Pods that
// arrive meanwhile are treated as if they came after its end, as by a kubelet.
func TestRoomWhileAVictimEnds(t *testing.T) {
	w := newParallelWorld(t)
	w.admitting = oneCPU()
	w.up()
	w.createReady(with(slow("victim"), asks("900m", 100)))
	w.api.create(with(with(newPod("critical"), asks("500m", 200)), critical))
	w.until("the victim ends", func() bool { r, _ := w.node.loop.Why(namespace, "victim"); return r.Phase == "Terminating" })
	w.api.create(with(with(newPod("second"), asks("200m", 300)), critical))
	w.api.create(with(newPod("plain"), asks("300m", 400)))
	for _, name := range []string{"critical", "second", "plain"} {
		w.untilReady(name)
	}
	ended := w.at(fake.OpExit, "app", 0)
	for n := 1; n <= 3; n++ {
		if at := w.at(fake.OpStart, "app", n); at < ended {
			t.Errorf("start %d is at %d, the victim's end at %d", n, at, ended)
		}
	}
	preempted := 0
	for _, e := range w.warnings() {
		if strings.Contains(e, "Preempting") {
			preempted++
		}
	}
	if preempted != 1 || !ready(w.api.pod("plain")) {
		t.Errorf("%d pods were preempted: %v", preempted, w.warnings())
	}
	w.end(1, "victim", "critical", "second", "plain")
}

// For a pod whose selector does not match, the node's labels are re-read, and other pods do not
// wait for that. The pod gets its first status after that, like on a kubelet.
func TestLabelsAreReReadAside(t *testing.T) {
	w := newParallelWorld(t)
	w.admitting = oneCPU()
	asked, answer := make(chan struct{}, 10), make(chan bool)
	w.reread = func(ctx context.Context) (admit.Node, error) {
		asked <- struct{}{}
		labelled := *oneCPU()
		if <-answer {
			labelled.Labels = map[string]string{"zone": "a"}
		}
		return labelled, nil
	}
	w.up()
	zoned := func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "a"} }
	w.api.create(with(newPod("labelled"), zoned))
	<-asked
	w.createReady(newPod("other"))
	if st := w.api.pod("labelled").Status; st.StartTime != nil || len(st.ContainerStatuses) > 0 {
		t.Errorf("the node has not decided on the pod yet, and its status is %+v", st)
	}
	answer <- true
	w.untilReady("labelled")
	w.api.create(with(newPod("refused"), zoned))
	<-asked
	answer <- false
	w.until("it is refused", func() bool { return w.api.pod("refused").Status.Phase == v1.PodFailed })
	if st := w.api.pod("refused").Status; st.Reason != "NodeAffinity" {
		t.Errorf("the status is %+v", st)
	}
	w.end(1, "labelled", "other", "refused")
}
