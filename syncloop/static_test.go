package syncloop_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/mirror"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
)

const nodeUID = "uid-of-the-node"

func (w *world) sources() []string {
	if w.manifests == "" {
		return []string{podconfig.SourceAPI}
	}
	return []string{podconfig.SourceAPI, podconfig.SourceFile}
}

// static has the parts that read static pods and keep their mirror pods.
func (w *world) static(n *node) []func(context.Context) error {
	if w.manifests == "" {
		return nil
	}
	warn := func(reason, message string) { recorder{w}.Event(nil, v1.EventTypeWarning, reason, message) }
	file := podconfig.NewFile(n.sources, podconfig.FileConfig{Files: w.host, Path: w.manifests, NodeName: "node", Period: 20 * time.Millisecond, Event: warn})
	mirrors, err := mirror.New(mirror.Config{Pods: w.api.client.CoreV1(), Sources: n.sources, NodeName: "node", Ending: n.loop.StaticPodEnding, Alive: func(uid types.UID) bool { return n.loop.State(uid).Alive() },
		Node: func() types.UID { return nodeUID }, Event: warn})
	if err != nil {
		w.t.Fatal(err)
	}
	return []func(context.Context) error{mirrors.Run, func(ctx context.Context) error {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for !w.api.isDown() && !n.sources.SeenBy(podconfig.SourceAPI) && ctx.Err() == nil {
			<-tick.C
		}
		return file.Run(ctx)
	}}
}

func (a *api) isDown() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.down || a.blind
}

// createMirror creates what admission allows a node to create; a.mu is held.
func (a *api) createMirror(p *v1.Pod) (*v1.Pod, error) {
	if old := a.pods[p.Name]; old != nil {
		return nil, apierrors.NewAlreadyExists(podResource, p.Name)
	}
	owner := metav1.GetControllerOf(p)
	if !pod.IsMirror(p) || p.Spec.NodeName != "node" || owner == nil || owner.Kind != "Node" || owner.Name != "node" || owner.UID != nodeUID {
		a.t.Errorf("a node may not create %s %+v", p.Name, p.ObjectMeta)
		return nil, apierrors.NewForbidden(podResource, p.Name, nil)
	}
	p = p.DeepCopy()
	a.uids++
	p.UID, p.CreationTimestamp = types.UID(fmt.Sprintf("uid-%s-%d", p.Name, a.uids)), metav1.Now()
	p.Status = v1.PodStatus{Phase: v1.PodPending}
	a.store(p)
	return p.DeepCopy(), nil
}

// staticWorld returns a world with an empty manifest directory and a running node.
func staticWorld(t *testing.T) *world {
	t.Helper()
	w := newParallelWorld(t)
	w.manifests = t.TempDir()
	w.up()
	return w
}

// write writes a manifest as an editor does; text if p is nil.
func (w *world) write(file string, p *v1.Pod, text string) {
	w.t.Helper()
	if p != nil {
		p = p.DeepCopy()
		p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
		p.Namespace, p.Spec.NodeName = namespace, ""
		data, err := yaml.Marshal(p)
		if err != nil {
			w.t.Fatal(err)
		}
		text = string(data)
	}
	if err := w.host.WriteFile(context.Background(), filepath.Join(w.manifests, file), []byte(text), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) remove(files ...string) {
	w.t.Helper()
	for _, file := range files {
		if err := os.Remove(filepath.Join(w.manifests, file)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// slow returns a pod that uses its whole grace period to end.
func slow(name string) *v1.Pod {
	return with(newPod(name, "ignore-term", "wait"), func(p *v1.Pod) { *p.Spec.TerminationGracePeriodSeconds = 1 })
}

// runs counts the starts of the container "app" of this name's pods.
func (w *world) runs() int { return w.rt.Count(fake.OpStart, "app") }

// hash returns the hash of the static pod that the mirror pod stands for.
func hash(p *v1.Pod) string { return p.Annotations[pod.AnnotationMirror] }

// A static pod runs, has a mirror pod, and can be asked for by either UID. When it is removed it
// ends within its grace period, its mirror pod shows how it ends and is deleted after it.
func TestStaticPod(t *testing.T) {
	w := staticWorld(t)
	w.write("web.yaml", slow("web"), "")
	p := w.untilReady("web-node")
	uid := types.UID(hash(p))
	if p.UID == uid || p.Annotations[pod.AnnotationConfigHash] != string(uid) || p.Annotations[pod.AnnotationSource] != "file" || p.Annotations[pod.AnnotationSeen] == "" {
		t.Errorf("mirror pod %s %v", p.UID, p.Annotations)
	}
	for _, asked := range []types.UID{"", uid, p.UID} {
		c, err := w.node.loop.Instance(t.Context(), namespace, "web-node", asked, "app", false)
		if err != nil || !c.Running {
			t.Errorf("asked by %q: %+v, %v", asked, c, err)
		}
	}
	if _, err := w.node.loop.Instance(t.Context(), namespace, "web-node", "another", "app", false); err == nil {
		t.Error("another life's container was given")
	}
	all := w.node.loop.Pods()
	if len(all) != 1 || all[0].UID != uid || !ready(all[0]) {
		t.Errorf("the node's pods are %v", all)
	}
	if w.why("web-node") == "" {
		t.Error("no one says why of it")
	}
	w.untilSettled("web-node")
	if n := w.runs(); n != 1 {
		t.Errorf("the container was started %d times", n)
	}
	w.remove("web.yaml")
	w.until("the mirror pod tells of the end", func() bool { return slices.Contains(w.api.everUnready(), "web-node") })
	w.untilGone()
}

// An edited pod is a new pod: the old one ends completely first.
func TestStaticPodEdited(t *testing.T) {
	w := staticWorld(t)
	w.write("web.yaml", slow("web"), "")
	first := w.untilReady("web-node")
	w.write("web.yaml", newPod("web", "out two", "on-term 0", "wait"), "")
	w.until("the mirror pod of the edited pod is ready", func() bool {
		p := w.api.pod("web-node")
		return p != nil && hash(p) != hash(first) && ready(p)
	})
	second := w.api.pod("web-node")
	if second.UID == first.UID {
		t.Error("the mirror pod of the old one was kept")
	}
	// In the runtime's log, the first sandbox stops before the second one runs.
	var order []string
	for _, e := range w.rt.Log() {
		if e.Op == fake.OpRunSandbox || e.Op == fake.OpStopSandbox {
			order = append(order, string(e.Op))
		}
	}
	if want := []string{string(fake.OpRunSandbox), string(fake.OpStopSandbox), string(fake.OpRunSandbox)}; !slices.Equal(order, want) {
		t.Errorf("sandboxes: %v, want %v", order, want)
	}
	w.remove("web.yaml")
	w.untilGone()
}

// A pod that is removed and added again unchanged while it still ends, ends completely and starts
// again. The mirror pod then shows the new life.
func TestStaticPodPutBack(t *testing.T) {
	w := staticWorld(t)
	for name, p := range map[string]*v1.Pod{
		"always": slow("web"),
		"never":  with(slow("once"), func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }),
	} {
		file, mirror := name+".yaml", p.Name+"-node"
		before := w.runs()
		w.write(file, p, "")
		first := w.untilReady(mirror)
		w.untilSettled(mirror)
		w.remove(file)
		w.until("it ends", func() bool { r, _ := w.node.loop.Why(namespace, mirror); return r.Phase == "Terminating" })
		w.write(file, p, "")
		w.until("it runs again", func() bool { return w.runs() == before+2 })
		w.until("its mirror pod tells so", func() bool {
			m := w.api.pod(mirror)
			return m != nil && m.Status.Phase == v1.PodRunning && ready(m) && container(m, "app").ContainerID != container(first, "app").ContainerID
		})
		m := w.api.pod(mirror)
		if hash(m) != hash(first) || container(m, "app").RestartCount != 1 {
			t.Errorf("%s: the mirror pod is of %s, was of %s, with %d restarts", name, hash(m), hash(first), container(m, "app").RestartCount)
		}
		w.untilSettled(mirror)
		w.remove(file)
		w.untilGone()
	}
}

// A broken manifest affects no other one and causes an event. Its pod keeps running until the
// manifest is fixed or removed.
func TestStaticPodBroken(t *testing.T) {
	w := staticWorld(t)
	w.write("bad.yaml", nil, "kind: Pod\n\tapiVersion: v1\n")
	w.write("good.yaml", newPod("good"), "")
	w.write("half.yaml", newPod("half"), "")
	w.untilReady("good-node")
	half := w.untilReady("half-node")
	w.write("other.yaml", newPod("other"), "")
	w.untilReady("other-node")
	w.until("an event tells of the broken one", func() bool {
		return w.event("Warning InvalidStaticPod Static pod manifest " + w.manifests + "/bad.yaml")
	})
	w.write("half.yaml", nil, "apiVersion: v1\nkind: Pod\nmetadata: {name: half}\nspec: {containers: [{name: app, image: x, envFrom: [{secretRef: {name: s}}]}]}\n")
	w.until("an event tells of what became unusable", func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return slices.ContainsFunc(w.events, func(e string) bool {
			return strings.Contains(e, "half.yaml") && strings.Contains(e, "may not use secrets") && strings.Contains(e, "keeps its last version")
		})
	})
	w.write("good.yaml", newPod("good", "out new", "on-term 0", "wait"), "")
	w.until("the good one is edited meanwhile", func() bool { return w.runs() == 4 })
	if p := w.api.pod("half-node"); p == nil || p.UID != half.UID || !ready(p) {
		t.Errorf("the pod of the broken manifest is %v", p)
	}
	// The same holds for a process that has never seen the manifest intact. It ends pods whose
	// manifest does not exist.
	w.down()
	w.remove("other.yaml")
	w.up()
	w.until("the orphan has gone, and its mirror pod", func() bool { return w.api.pod("other-node") == nil && len(w.left()) <= 4 })
	w.untilSettled("good-node")
	if p := w.api.pod("half-node"); p == nil || p.UID != half.UID || w.runs() != 4 || len(w.left()) != 4 {
		t.Errorf("after a restart the pod of the broken manifest is %v, of %d starts, and there are %v", p, w.runs(), w.left())
	}
	w.write("half.yaml", newPod("half", "out fixed", "on-term 0", "wait"), "")
	w.until("it is fixed, and the old one ends first", func() bool { p := w.api.pod("half-node"); return p != nil && p.UID != half.UID && ready(p) })
	w.remove("bad.yaml", "good.yaml", "half.yaml")
	w.untilGone()
}

// A mirror pod that someone deletes is recreated with the same status; its static pod is not
// affected.
func TestMirrorPodDeleted(t *testing.T) {
	w := staticWorld(t)
	w.write("web.yaml", newPod("web"), "")
	w.write("once.yaml", with(newPod("once", "exit 0"), func(p *v1.Pod) { p.Spec.RestartPolicy = v1.RestartPolicyNever }), "")
	first := w.untilReady("web-node")
	w.until("once has ended", func() bool { p := w.api.pod("once-node"); return p != nil && p.Status.Phase == v1.PodSucceeded })
	w.until("its worker has ended", func() bool { r, _ := w.node.loop.Why(namespace, "once-node"); return r.Phase == "Gone" })
	once := w.api.pod("once-node")
	for _, grace := range []int64{0, 30} { // at once, and like kubectl
		before := w.api.pod("web-node").UID
		w.api.delete("web-node", grace)
		w.until("another mirror pod is ready", func() bool {
			p := w.api.pod("web-node")
			return p != nil && p.UID != before && p.DeletionTimestamp == nil && ready(p)
		})
	}
	w.api.delete("once-node", 0)
	w.until("the new mirror pod tells how once has ended", func() bool {
		p := w.api.pod("once-node")
		return p != nil && p.UID != once.UID && p.Status.Phase == v1.PodSucceeded
	})
	w.untilSettled("web-node")
	if got := w.instance("web-node", "app"); got != container(first, "app").ContainerID[len("containerd://"):] || w.runs() != 2 {
		t.Errorf("the container is %s, of %d starts", got, w.runs())
	}
	// A status that someone else writes ends nothing.
	w.api.update("web-node", func(p *v1.Pod) { p.Status.Phase, p.Status.Reason = v1.PodFailed, "NodeLost" })
	w.api.delete("web-node", 0)
	w.untilReady("web-node")
	if w.runs() != 2 {
		t.Errorf("%d starts", w.runs())
	}
	w.remove("web.yaml", "once.yaml")
	w.untilGone()
}

// A new process adopts static pods: nothing restarts, no status goes back. A pod that was edited or
// removed while no process ran ends before its successor starts.
func TestStaticPodAdopted(t *testing.T) {
	w := staticWorld(t)
	w.write("steady.yaml", newPod("steady"), "")
	w.write("edited.yaml", slow("edited"), "")
	w.write("removed.yaml", slow("removed"), "")
	for _, name := range []string{"steady-node", "edited-node", "removed-node"} {
		w.untilReady(name)
		w.untilSettled(name)
	}
	steady := w.api.pod("steady-node")
	unready := len(w.api.everUnready())
	w.down()
	w.write("edited.yaml", newPod("edited", "out two", "on-term 0", "wait"), "")
	w.remove("removed.yaml")
	w.up()
	w.until("the removed one has gone", func() bool { return w.api.pod("removed-node") == nil })
	pods, err := w.node.loop.RunningPods(t.Context())
	if err != nil || slices.ContainsFunc(pods, func(p *v1.Pod) bool { return p.Name == "removed-node" }) {
		t.Errorf("its mirror pod went while it ran: %v, %v", pods, err)
	}
	w.until("the edited one runs", func() bool { return w.runs() == 4 && ready(w.api.pod("edited-node")) })
	w.untilSettled("steady-node")
	now := w.api.pod("steady-node")
	if now.UID != steady.UID || container(now, "app").ContainerID != container(steady, "app").ContainerID {
		t.Errorf("steady was %s with %s, and is %s with %s", steady.UID, container(steady, "app").ContainerID, now.UID, container(now, "app").ContainerID)
	}
	if got := w.api.everUnready(); slices.Contains(got[unready:], "steady-node") {
		t.Errorf("unready: %v", got)
	}
	running := 0
	for _, e := range w.rt.Log() {
		switch e.Op {
		case fake.OpRunSandbox:
			running++
		case fake.OpStopSandbox:
			running--
		}
		if running > 3 {
			t.Error("the edited pod ran beside what it was before")
		}
	}
	w.remove("steady.yaml", "edited.yaml")
	w.untilGone()
}

// Static pods run without an API server from the start, and a host that cannot be read ends none of
// them.
func TestStaticPodAlone(t *testing.T) {
	w := newParallelWorld(t)
	w.manifests = t.TempDir()
	w.api.blind, w.api.down = true, true
	w.write("web.yaml", newPod("web"), "")
	w.up()
	running := func() int {
		pods, err := w.node.loop.RunningPods(t.Context())
		testutil.Must(t, err)
		return len(pods)
	}
	w.until("it runs", func() bool { return running() == 1 })
	w.write("web.yaml", newPod("web", "out two", "on-term 0", "wait"), "")
	w.until("it was edited", func() bool { return w.runs() == 2 && running() == 1 })
	w.down()
	w.write("web.yaml", newPod("web", "out three", "on-term 0", "wait"), "")
	w.up()
	w.until("what it was has ended, and it runs again", func() bool { return w.runs() == 3 && running() == 1 })
	w.host.lost.Store(true)
	looks := w.host.looks.Load()
	w.until("a look that saw the machine has ended", func() bool { return w.host.looks.Load() > looks+1 })
	w.remove("web.yaml")
	looks = w.host.looks.Load()
	w.until("the machine was looked for", func() bool { return w.host.looks.Load() > looks+3 })
	if running() != 1 {
		t.Error("a pod ended that no one could see to be removed")
	}
	w.host.lost.Store(false)
	w.until("it ends", func() bool { return running() == 0 })
}
