package allocation

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// node is what surrounds a manager. Its test touches it while the manager sleeps.
type node struct {
	*Manager
	mu      sync.Mutex            // of answers, fails and touched, which the manager's timers lead to
	pods    map[types.UID]*v1.Pod // of the API source
	touched map[types.UID]bool    // those that have a sandbox
	ended   map[types.UID]bool
	answers map[types.UID][]Answer
	events  []string
	counted []string // calls of Preempted and Resolved
	file    []byte
	cpus    string        // of the node
	fails   error         // of each read and write
	hold    chan struct{} // each write waits for it, if it is not nil
	writes  int           // under way
}

func (n *node) Pods() []*v1.Pod           { return slices.Collect(maps.Values(n.pods)) }
func (n *node) Get(uid types.UID) *v1.Pod { return n.pods[uid] }
func (n *node) SeenBy(string) bool        { return true }

func (n *node) last(uid types.UID) *Answer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return &n.answers[uid][len(n.answers[uid])-1]
}

// touch sets whether the pod has a sandbox.
func (n *node) touch(uid types.UID, has bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.touched[uid] = has
}

func (n *node) fail(err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.fails = err
}

func (n *node) ReadFile(context.Context, string, int64) ([]byte, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.file == nil {
		return nil, cmp.Or(n.fails, fs.ErrNotExist)
	}
	return n.file, n.fails
}

func (n *node) WriteFile(ctx context.Context, _ string, data []byte, _ fs.FileMode) error {
	if n.writes++; n.writes > 1 {
		panic("two writes at a time")
	}
	defer func() { n.writes-- }()
	if n.hold != nil {
		select {
		case <-n.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if n.fails == nil {
		n.file = data
	}
	return n.fails
}

// run runs the test beside a manager of a node with one CPU, and waits for the manager's end.
func run(t *testing.T, change func(*Config), test func(t *testing.T, n *node)) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{cpus: "1", pods: map[types.UID]*v1.Pod{}, touched: map[types.UID]bool{}, ended: map[types.UID]bool{}, answers: map[types.UID][]Answer{}}
		c := Config{Sources: n, Files: n, Root: "/r",
			Node:        func() admit.Node { return admit.Node{Name: "node", OS: "linux", Allocatable: n.allocatable()} },
			Allocatable: n.allocatable,
			Observed: func(uid types.UID) pod.Observed {
				o := pod.Observed{Seq: 1}
				n.mu.Lock()
				defer n.mu.Unlock()
				if n.touched[uid] {
					o.Sandboxes = []pod.Sandbox{{ID: "s", Ready: true}}
				}
				return o
			},
			Ended: func(uid types.UID) bool { return n.ended[uid] || len(n.answers[uid]) == 0 },
			Grace: func(*v1.Pod) time.Duration { return 20 * time.Second },
			Deliver: func(uid types.UID, a Answer) {
				n.mu.Lock()
				defer n.mu.Unlock()
				n.answers[uid] = append(n.answers[uid], a)
			},
			Event:      func(p *v1.Pod, _, reason, _ string) { n.events = append(n.events, p.Name+" "+reason) },
			Preempted:  func(lacking v1.ResourceName) { n.counted = append(n.counted, "preempted "+string(lacking)) },
			Infeasible: func(cause string) { n.counted = append(n.counted, "infeasible "+cause) },
			Resolved: func(p *v1.Pod, how, trigger string, waited time.Duration) {
				n.counted = append(n.counted, fmt.Sprint(p.Name, " ", how, " ", trigger, " ", waited.Round(time.Second)))
			},
		}
		if change != nil {
			change(&c)
		}
		n.Manager = New(c)
		stop := testutil.Go(t.Context(), n.Run)
		synctest.Wait()
		test(t, n)
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func (n *node) allocatable() v1.ResourceList {
	return v1.ResourceList{v1.ResourceCPU: resource.MustParse(n.cpus), v1.ResourcePods: resource.MustParse("10")}
}

// asks gives the pod to the sources, asks about it, and returns the answer.
func (n *node) asks(name, cpu string, change func(*v1.Pod)) *Answer {
	uid := types.UID(name)
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid, Generation: 1}}
	if former := n.pods[uid]; former != nil {
		p.Generation = former.Generation + 1
	}
	p.Spec.Containers = []v1.Container{{Name: "app", Resources: v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}}}
	if change != nil {
		change(p)
	}
	n.pods[uid] = p
	n.Ask(p)
	synctest.Wait()
	return n.last(uid)
}

func critical(p *v1.Pod) {
	most := int32(2_000_001_000)
	p.Spec.Priority = &most
}

func (n *node) end(uid types.UID) {
	n.ended[uid] = true
	n.Ended(uid)
	synctest.Wait()
}

// Each new pod gets an answer that is for it. A question that changes nothing gets none.
func TestAnswersInOrder(t *testing.T) {
	run(t, nil, func(t *testing.T, n *node) {
		if a := n.asks("p", "100m", nil); !a.Complete() || a.Rejection != nil || a.Version != 1 || a.Pod != n.pods["p"] {
			t.Errorf("%+v", a)
		}
		first, second := n.pods["p"], n.pods["p"].DeepCopy()
		n.Ask(second)
		n.Ask(first) // the same as the last answer was for, and yet a later question
		synctest.Wait()
		if a := n.last("p"); a.Pod != first || a.Version != 3 {
			t.Errorf("%+v", a)
		}
		n.Ask(first)
		synctest.Wait()
		if got := len(n.answers["p"]); got != 2 {
			t.Errorf("%d answers", got)
		}
	})
}

// A pod that an earlier process started may be preempted before it has a worker, which then learns
// it. A pod that is not preempted is left alone.
func TestPreemptedBeforeItHasAWorker(t *testing.T) {
	run(t, nil, func(t *testing.T, n *node) {
		n.touch("gives-way", true)
		n.touch("stays", true)
		n.asks("stays", "200m", critical)
		n.pods["gives-way"] = &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "gives-way", UID: "gives-way"}, Spec: *n.pods["stays"].Spec.DeepCopy()}
		n.pods["gives-way"].Spec.Priority = nil
		n.asks("critical", "800m", critical)
		n.Ask(n.pods["gives-way"])
		synctest.Wait()
		if n.last("gives-way").Preempted.IsZero() || !n.last("stays").Preempted.IsZero() || !slices.Equal(n.events, []string{"gives-way Preempting"}) {
			t.Errorf("%v, %v", n.answers, n.events)
		}
	})
}

// A critical pod waits for the pod that is preempted for it: until it ends, or for 1.5 times its
// grace period.
func TestCriticalPodWaitsForItsVictim(t *testing.T) {
	for _, ends := range []bool{true, false} {
		run(t, nil, func(t *testing.T, n *node) {
			n.touch("victim", true)
			n.asks("victim", "800m", nil)
			if a := n.asks("critical", "800m", critical); !a.Decided || !a.Waits || n.last("victim").Preempted.IsZero() {
				t.Fatalf("%+v", a)
			}
			began := time.Now()
			if ends {
				n.end("victim")
			}
			for n.last("critical").Waits && time.Since(began) < time.Minute {
				<-time.After(time.Second)
				synctest.Wait()
			}
			if took := time.Since(began); ends && took != 0 || !ends && took.Round(time.Second) != 30*time.Second {
				t.Errorf("it waited %s", took)
			}
			if late := slices.Contains(n.events, "victim ExceededGracePeriod"); late == ends {
				t.Errorf("%v", n.events)
			}
			if !slices.Equal(n.counted, []string{"preempted cpu"}) {
				t.Errorf("counted %q", n.counted)
			}
		})
	}
}

// A resize that does not fit is deferred. It is accepted when another pod ends, or some minutes
// after the node has become larger.
func TestDeferredResize(t *testing.T) {
	run(t, nil, func(t *testing.T, n *node) {
		n.asks("other", "600m", nil)
		n.asks("p", "300m", nil)
		a := n.asks("p", "700m", nil)
		if c := a.Pending; c == nil || c.Reason != v1.PodReasonDeferred || c.ObservedGeneration != 2 || a.Pod.Spec.Containers[0].Resources.Requests.Cpu().String() != "300m" {
			t.Fatalf("%+v", a)
		}
		n.end("other")
		if a := n.last("p"); a.Pending != nil || a.Accepted != 2 || a.Pod != n.pods["p"] || !strings.Contains(a.Allocated, `"700m"`) {
			t.Errorf("%+v", a)
		}
		n.asks("p", "1500m", nil)
		n.post(func(context.Context) { n.cpus = "2" })
		<-time.After(resizeRetry + time.Second)
		if a := n.last("p"); a.Pending != nil || a.Accepted != 3 {
			t.Errorf("%+v", a)
		}
		if want := []string{"p ResizeDeferred", "p ResizeStarted", "p ResizeDeferred", "p ResizeStarted"}; !slices.Equal(n.events, want) {
			t.Errorf("%v", n.events)
		}
		if want := []string{"p accepted pod_terminated 0s", "p accepted periodic_retry 3m0s"}; !slices.Equal(n.counted, want) {
			t.Errorf("counted %q, want %q", n.counted, want)
		}
	})
}

// A deferred resize also ends when it is withdrawn, and with its pod.
func TestDeferredResizeThatIsNotAccepted(t *testing.T) {
	run(t, nil, func(t *testing.T, n *node) {
		n.asks("other", "600m", nil)
		for _, name := range []string{"reverted", "ended", "gone"} {
			n.asks(name, "100m", nil)
			if n.asks(name, "700m", nil).Pending == nil {
				t.Fatalf("the resize of %s is not deferred", name)
			}
			<-time.After(10 * time.Second)
		}
		n.asks("reverted", "100m", nil)
		n.end("ended")
		n.Gone("gone")
		synctest.Wait()
		if want := []string{"reverted reverted pod_updated 30s", "ended terminated pod_updated 20s", "gone terminated pod_terminated 10s"}; !slices.Equal(n.counted, want) {
			t.Errorf("counted %q, want %q", n.counted, want)
		}
	})
}

// A node that does not resize pod-level resources says so once, and still resizes containers.
func TestFixedPodResources(t *testing.T) {
	for fixed, want := range map[bool]string{false: "p ResizeStarted", true: "p ResizeInfeasible"} {
		run(t, func(c *Config) { c.FixedPodResources = fixed }, func(t *testing.T, n *node) {
			whole := func(cpu string) func(*v1.Pod) {
				return func(p *v1.Pod) {
					p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}
				}
			}
			n.asks("p", "100m", whole("300m"))
			a := n.asks("p", "100m", whole("400m"))
			if !slices.Equal(n.events, []string{want}) || (a.Pending != nil) != fixed {
				t.Errorf("fixed %v: %v, %+v", fixed, n.events, a.Pending)
			}
			if fixed && (a.Pending.Reason != v1.PodReasonInfeasible || a.Pod.Spec.Resources.Requests.Cpu().String() != "300m") {
				t.Errorf("%+v, %v", a.Pending, a.Pod.Spec.Resources)
			}
			<-time.After(resizeRetry + time.Second)
			if len(n.events) != 1 || fixed != slices.Equal(n.counted, []string{"infeasible plr_feature_gate_off"}) {
				t.Errorf("fixed %v: later %v, counted %q", fixed, n.events, n.counted)
			}
			if a := n.asks("p", "200m", whole(map[bool]string{false: "400m", true: "300m"}[fixed])); a.Pending != nil || a.Accepted != a.Pod.Generation {
				t.Errorf("fixed %v: a resize of a container: %+v, accepted %d", fixed, a.Pending, a.Accepted)
			}
		})
	}
}

// The message of a deferred resize names what the node's pods use. It changes with each of them, and
// would cost a write of the status each time.
func TestDeferredResizeIsNotRewritten(t *testing.T) {
	run(t, nil, func(t *testing.T, n *node) {
		n.asks("other", "600m", nil)
		n.asks("p", "200m", nil)
		first := n.asks("p", "700m", nil).Pending
		answers := len(n.answers["p"])
		n.asks("third", "100m", nil)
		n.end("third")
		if len(n.answers["p"]) != answers || n.last("p").Pending != first {
			t.Errorf("%d answers instead of %d: %+v, %+v", len(n.answers["p"]), answers, first, n.last("p").Pending)
		}
		n.asks("fourth", "50m", nil)
		<-time.After(resizeRetry + time.Second)
		if c := n.last("p").Pending; c.Message == first.Message || c.LastTransitionTime != first.LastTransitionTime {
			t.Errorf("the message was not renewed: %+v, %+v", first, c)
		}
	})
}

// One read of the labels is under way at a time. A pod that comes meanwhile gets the next one, and
// a pod without a selector does not wait. The manager's end ends it.
func TestOneReadOfTheLabelsAtATime(t *testing.T) {
	var answer chan error
	reads, reading := 0, false
	run(t, func(c *Config) {
		answer = make(chan error)
		c.Reread = func(ctx context.Context) (admit.Node, error) {
			reads, reading = reads+1, true
			defer func() { reading = false }()
			select {
			case err := <-answer:
				return admit.Node{Name: "node", OS: "linux", Labels: map[string]string{"zone": "a"}, Allocatable: c.Allocatable()}, err
			case <-ctx.Done():
				return admit.Node{}, ctx.Err()
			}
		}
	}, func(t *testing.T, n *node) {
		zoned := func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "a"} }
		first, other, second := n.asks("first", "1m", zoned), n.asks("other", "1m", nil), n.asks("second", "1m", zoned)
		if first.Decided || !other.Decided || second.Decided || reads != 1 {
			t.Errorf("%d reads: %+v, %+v, %+v", reads, first, other, second)
		}
		answer <- nil
		synctest.Wait()
		if a := n.last("first"); !a.Decided || a.Rejection != nil || n.last("second").Decided || reads != 2 {
			t.Errorf("%d reads: %+v", reads, a)
		}
		answer <- errors.New("the API server is away") // the labels that the watch has count
		synctest.Wait()
		if a := n.last("second"); a.Rejection == nil || a.Rejection.Reason != admit.ReasonNodeAffinity {
			t.Errorf("%+v", a)
		}
		n.asks("third", "1m", zoned)
	})
	if reads != 3 || reading {
		t.Errorf("%d reads, and one is under way after the manager's end: %v", reads, reading)
	}
}

// A write that hangs delays other writes, and no admission. One that fails is reported.
func TestHungWrite(t *testing.T) {
	run(t, nil, func(t *testing.T, n *node) {
		n.asks("one", "1m", nil)
		n.asks("two", "1m", nil)
		n.hold = make(chan struct{})
		saved := make(chan error, 3)
		ctx, cancel := context.WithCancel(t.Context())
		save := func(uid types.UID) {
			go func() { saved <- n.Save(ctx, uid, Resized{Sandbox: "s"}) }()
			synctest.Wait()
		}
		save("one")
		save("two")
		if a := n.asks("new", "1m", nil); !a.Complete() || n.file != nil {
			t.Errorf("%+v, %s", a, n.file)
		}
		n.hold <- struct{}{}
		n.hold <- struct{}{}
		for range 2 {
			if err := <-saved; err != nil {
				t.Error(err)
			}
		}
		if all := string(n.file); !strings.Contains(all, `"one"`) || !strings.Contains(all, `"two"`) {
			t.Errorf("written is %s", all)
		}
		n.Gone("one")
		delete(n.pods, "one")
		save("two")
		n.hold <- struct{}{}
		if err := <-saved; err != nil || strings.Contains(string(n.file), `"one"`) {
			t.Errorf("%v, and a pod that is gone is kept: %s", err, n.file)
		}
		n.fails = fs.ErrPermission
		close(n.hold)
		if err := n.Save(ctx, "two", Resized{}); !errors.Is(err, fs.ErrPermission) {
			t.Error(err)
		}
		n.hold = make(chan struct{})
		save("two")
		cancel()
		if err := <-saved; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// Until the checkpoint can be read no allocation is known, and the pod is admitted nevertheless.
// Reading it is retried.
func TestCheckpointThatCannotBeRead(t *testing.T) {
	down := errors.New("unreachable")
	var broken *node
	run(t, func(c *Config) { broken = c.Sources.(*node); broken.fails = down }, func(t *testing.T, n *node) {
		n.touch("p", true)
		n.file = []byte(`{"schemaVersion":1,"pods":{"p":{"sandbox":"s","allocation":{"containers":{"app":{"requests":{"cpu":"50m"}}}}}}}`)
		if a := n.asks("p", "100m", nil); !a.Decided || a.Complete() || a.Pod != n.pods["p"] {
			t.Errorf("%+v", a)
		}
		n.fail(nil)
		<-time.After(2 * time.Second)
		synctest.Wait()
		if a := n.last("p"); !a.Complete() || a.Restored.Sandbox != "s" || !strings.Contains(a.Restored.Cgroup, `"50m"`) || a.Accepted != 1 {
			t.Errorf("%+v", a)
		}
	})
}

// A static pod that was removed and is back with its UID is admitted as a new one.
func TestNextLifeOfAUID(t *testing.T) {
	run(t, nil, func(t *testing.T, n *node) {
		n.asks("p", "2", nil)
		if n.last("p").Rejection == nil {
			t.Fatal("it fits")
		}
		n.end("p")
		n.Gone("p")
		if a := n.asks("p", "1", nil); !a.Decided || a.Rejection != nil || a.Version != 2 {
			t.Errorf("%+v", a)
		}
	})
}

func TestMessage(t *testing.T) {
	p := &v1.Pod{}
	p.Spec.Containers = []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
		v1.ResourceCPU: resource.MustParse("1"), v1.ResourceMemory: resource.MustParse("1Mi")}}}}
	got := Message("Pod resize error", p, 7, "it broke")
	for _, want := range []string{`Pod resize error: {"containers":[{"name":"c","resources":{"requests":{"cpu":"1","memory":"1Mi"}}}]`, `"generation":7`, `"error":"it broke"}`} {
		if !strings.Contains(got, want) {
			t.Errorf("%s has no %s", got, want)
		}
	}
}

// A resize that needs a feature which the node does not declare is an event of the pod, once for each
// update.
func TestUpdateNeedsAFeature(t *testing.T) {
	level := func(cpu string) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.Resources = &v1.ResourceRequirements{Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse(cpu)}}
		}
	}
	for declared, want := range map[string]int{"": 2, "InPlacePodLevelResourcesVerticalScaling": 0} {
		run(t, func(c *Config) {
			c.Node = func() admit.Node {
				return admit.Node{Name: "node", OS: "linux", Allocatable: c.Allocatable(), Features: strings.Fields(declared)}
			}
		}, func(t *testing.T, n *node) {
			n.asks("p", "100m", level("200m"))
			n.asks("p", "100m", level("300m"))
			n.asks("p", "100m", func(p *v1.Pod) { level("300m")(p); p.Labels = map[string]string{"a": "b"} })
			n.asks("p", "100m", level("400m"))
			got := 0
			for _, e := range n.events {
				if e == "p FailedNodeDeclaredFeaturesCheck" {
					got++
				}
			}
			if got != want {
				t.Errorf("declared %q: %d events, want %d: %v", declared, got, want, n.events)
			}
		})
	}
}
