package chaos

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// resident is a pod that stays on a node while one process after the other is killed.
type resident struct {
	node            *node
	name            string
	witness         *witness
	creates, starts int
}

// settle makes a pod and waits until it is Ready.
func (n *node) settle(ctx context.Context, name string) (*resident, error) {
	dir, err := shared(n.dir, name)
	if err != nil {
		return nil, err
	}
	r := &resident{node: n, name: name}
	if r.creates, r.starts, err = n.tasks.Counts(); err != nil {
		return nil, err
	}
	if r.witness, err = watchPod(ctx, n, namespace, name, filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	if _, err := n.lab.Client.CoreV1().Pods(namespace).Create(ctx, lifePod(name, n.name, dir), metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	return r, r.witness.lives(ctx, true)
}

// managed waits until a process that began after the mark has probed the pod, which shows that it
// has adopted the pod. It returns the process's calls until then.
func (r *resident) managed(ctx context.Context, begins int) ([]entry, error) {
	var calls []entry
	err := labtest.Until(ctx, patience, "the next process to probe the pod", func(context.Context) error {
		began := 0
		entries := r.node.since()
		for i, e := range entries {
			if e.what == "begin" {
				began++
				calls = entries[i:]
			}
		}
		if began < begins {
			return fmt.Errorf("%d of %d processes have begun", began, begins)
		}
		probes := 0
		for i, e := range calls {
			if e.what == "call" && e.label == "cri/ExecSync" {
				if probes++; probes == 2 { // the first of them has been answered
					calls = calls[:i]
					return nil
				}
			}
		}
		return fmt.Errorf("it has not probed the pod")
	})
	return calls, err
}

// restart kills the process while a fault awaits the next one, and checks the pod once a process
// manages it again.
func (r *resident) restart(ctx context.Context, f *fault) []string {
	ctx, cancel := r.node.oneCase(ctx)
	defer cancel(nil)
	if err := r.node.between(ctx, f); err != nil {
		return []string{err.Error()}
	}
	begins := 1
	var bad []string
	if f != nil {
		err := r.node.awaitStrike(ctx, f)
		if err != nil {
			bad = append(bad, err.Error())
		} else if f.kills() {
			begins = 2
		}
	}
	if _, err := r.managed(ctx, begins); err != nil {
		bad = append(bad, err.Error())
	}
	return append(bad, r.check()...)
}

// check returns the violations so far.
func (r *resident) check() []string {
	versions, bad := r.witness.seen()
	bad = append(bad, steady(versions, 0)...)
	creates, starts, err := r.node.tasks.Counts()
	if err != nil {
		bad = append(bad, err.Error())
	}
	if creates-r.creates != 3 || starts-r.starts != 3 {
		bad = append(bad, fmt.Sprintf("containerd made %d containers and started %d tasks in all, want 3 and 3", creates-r.creates, starts-r.starts))
	}
	entered, left := 0, 0
	for _, l := range r.witness.lines() {
		switch l[0] + " " + l[1] {
		case "main enter":
			entered++
		case "main leave":
			left++
		}
	}
	if entered != 1 || left != 0 {
		bad = append(bad, fmt.Sprintf("main entered %d times and left %d times, want 1 and 0", entered, left))
	}
	if p := r.witness.last(); !labtest.IsReady(p) {
		bad = append(bad, "the pod is not Ready: "+labtest.Describe(p))
	}
	return bad
}

// leave deletes the pod and checks its whole life.
func (r *resident) leave(ctx context.Context) []string {
	defer r.witness.stop()
	ctx, cancel := r.node.oneCase(ctx)
	defer cancel(nil)
	if err := r.node.arm(nil); err != nil {
		return []string{err.Error()}
	}
	return r.end(ctx, nil)
}

// end deletes the pod, under a fault that may have struck before, and checks its whole life.
func (r *resident) end(ctx context.Context, f *fault) []string {
	if err := r.node.lab.Client.CoreV1().Pods(namespace).Delete(ctx, r.name, metav1.DeleteOptions{}); err != nil {
		return []string{err.Error()}
	}
	if err := r.node.lab.PodGone(ctx, namespace, r.name, patience); err != nil {
		return []string{err.Error()}
	}
	<-r.witness.gone
	var bad []string
	if f != nil {
		if err := r.node.awaitStrike(ctx, f); err != nil {
			bad = append(bad, err.Error())
		}
	}
	if err := r.node.clean(ctx, patience); err != nil {
		bad = append(bad, err.Error())
	}
	e := trace{fault: f, lines: r.witness.lines(), inside: r.witness.unleft()}
	var err error
	if e.creates, e.starts, err = r.node.tasks.Counts(); err != nil {
		return append(bad, err.Error())
	}
	e.creates, e.starts = e.creates-r.creates, e.starts-r.starts
	var seen []string
	e.versions, seen = r.witness.seen()
	return append(append(bad, seen...), e.check()...)
}

// testAdoption kills the process that manages a Ready pod, and then its successor at every call
// that a new process makes until it manages the pod.
func (a *arena) testAdoption(t *testing.T) {
	residents := map[*node]*resident{}
	seen := make([]map[call]int, len(a.nodes))
	var mu sync.Mutex
	var all sync.WaitGroup
	for i, n := range a.nodes {
		all.Go(func() {
			r, err := n.settle(t.Context(), "resident-"+n.name)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			residents[n] = r
			mu.Unlock()
			if bad := r.restart(t.Context(), nil); len(bad) > 0 {
				t.Errorf("restarted without a fault, on %s: %q", n.name, bad)
			}
			calls, err := r.managed(t.Context(), 1)
			if err != nil {
				t.Error(err)
			}
			seen[i] = counts(calls)
		})
	}
	all.Wait()
	if !t.Failed() {
		cases := a.sample(a.matrix("adoption/", seen, func(string) bool { return false }))
		report(t, cases)
		a.spread(t, a.teams(1), cases, func(ctx context.Context, team []*node, _ int, c testCase) []string {
			return residents[team[0]].restart(ctx, &c.fault)
		})
	}
	for _, r := range residents {
		all.Go(func() {
			if bad := r.leave(t.Context()); len(bad) > 0 {
				t.Errorf("%s, when it left: %q", r.name, bad)
			}
		})
	}
	all.Wait()
}
