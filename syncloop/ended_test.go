package syncloop_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// A pod that has ended stays ended while older versions of its object still arrive: the API server has
// its last status before the watch shows it.
func TestLateWatchOfAnEndedPod(t *testing.T) {
	w := up(t)
	p := w.createReady(newPod("web", "ignore-term", "wait"))
	w.api.delayWatch("web")
	w.api.update("web", func(p *v1.Pod) { p.Labels = map[string]string{"version": "2"} })
	w.node.loop.End(p.UID, plan.Terminate{At: time.Now(), Grace: 2 * time.Second, Cause: plan.CauseEvicted, Reason: "Evicted", Disruption: "evicted"})
	w.until("its end is written", func() bool { return done(w.api.pod("web")) })
	w.until("nothing else is left to do", func() bool {
		return !w.node.loop.State(p.UID).Managed || strings.Contains(w.why("web"), "waits for the API server")
	})
	w.api.showOne()
	w.createReady(newPod("next"))
	if s := w.node.loop.State(p.UID); s.Alive() {
		t.Errorf("it begins again: %s", w.why("web"))
	}
	w.api.catchUp()
	w.untilOver("web")
	if n := w.rt.Count(fake.OpStart, "app"); n != 2 {
		t.Errorf("%d containers were started, want one of each pod", n)
	}
	w.end(1, "web", "next")
}

// Each static pod that the node has rejected while it was going down runs when it stays, and none runs
// before, although its mirror pod is written and seen while its worker ends.
func TestRevivalOfManyPods(t *testing.T) {
	const pods = 20
	w := newParallelWorld(t)
	w.manifests, w.admitting = t.TempDir(), oneCPU()
	w.admitting.Allocatable[v1.ResourcePods] = resource.MustParse("100")
	w.goingDown.Store(true)
	w.up()
	var files []string
	for i := range pods {
		files = append(files, fmt.Sprintf("%d.yaml", i))
		w.write(files[i], newPod(fmt.Sprintf("pod-%d", i)), "")
	}
	for i := range pods {
		w.untilFailed(fmt.Sprintf("pod-%d-node", i), "NodeShutdown", "Pod was rejected: Pod was rejected as the node is shutting down.")
	}
	for i := range pods {
		w.untilOver(fmt.Sprintf("pod-%d-node", i))
	}
	if n := w.rt.Count(fake.OpStart, "app"); n != 0 {
		t.Errorf("%d containers were started", n)
	}
	w.goingDown.Store(false)
	w.until("no pod is pending", func() bool { return !w.node.loop.Revive() })
	for i := range pods {
		w.untilReady(fmt.Sprintf("pod-%d-node", i))
	}
	w.remove(files...)
	w.untilGone()
}

// untilOver waits until the pod has ended and has no worker.
func (w *world) untilOver(name string) {
	w.t.Helper()
	w.until("the worker of "+name+" has ended", func() bool {
		p, _ := w.node.loop.PodByName(namespace, name)
		return p != nil && w.node.loop.State(p.UID).Over(p)
	})
}
