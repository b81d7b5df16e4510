package plan

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"math/rand"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// mutants are planners with one fault each, and the property that must catch it. A property that
// misses its mutant proves nothing.
var mutants = map[string]struct {
	property string
	decide   func(Input) Plan
}{
	"believes a stale observation": {"stale", func(in Input) Plan {
		in.Observed.Stale = ""
		return Decide(in)
	}},
	"believes an observation older than its last change": {"stale", func(in Input) Plan {
		in.NeedSeq = 0
		return Decide(in)
	}},
	"takes an old observation for the world, and two live": {"two-live", func(in Input) Plan {
		in.NeedSeq, in.Observed.Stale = 0, ""
		in.Observed.Seq = 1
		in.Observed.Containers = only(in.Observed.Containers, func(c pod.Container) bool { return c.State == pod.StateExited })
		return Decide(in)
	}},
	"takes unknown for dead": {"two-live", func(in Input) Plan {
		in.Observed.Containers = change(in.Observed.Containers, func(c *pod.Container) {
			if c.State == pod.StateUnknown {
				c.State = pod.StateExited
			}
		})
		return Decide(in)
	}},
	"starts after the end": {"start-after-end", func(in Input) Plan {
		out := Decide(in)
		if out.Phase == pod.Terminating {
			again := in
			again.Phase, again.Terminate = pod.Syncing, nil
			if again.Pod != nil {
				again.Pod = again.Pod.DeepCopy()
				again.Pod.DeletionTimestamp = nil
				out.Start = append(out.Start, Decide(again).Start...)
			}
		}
		return out
	}},
	"forgets the init containers": {"main-before-init", func(in Input) Plan {
		if in.Pod != nil {
			in.Pod = in.Pod.DeepCopy()
			in.Pod.Spec.InitContainers = nil
		}
		return Decide(in)
	}},
	"lets containers of an old sandbox vouch": {"main-before-init", func(in Input) Plan {
		if len(in.Observed.Sandboxes) > 0 && in.Phase == pod.Syncing {
			in.Observed.Containers = change(in.Observed.Containers, func(c *pod.Container) {
				if c.State == pod.StateExited {
					c.SandboxID = in.Observed.Sandboxes[0].ID
				}
			})
		}
		return Decide(in)
	}},
	"does not wait for a sidecar's startup probe": {"main-before-init", func(in Input) Plan {
		if in.Pod != nil {
			in.Pod = in.Pod.DeepCopy()
			for i := range in.Pod.Spec.InitContainers {
				in.Pod.Spec.InitContainers[i].StartupProbe = nil
			}
		}
		return Decide(in)
	}},
	"goes back a phase": {"phase", func(in Input) Plan {
		out := Decide(in)
		if in.Phase == pod.Terminated && len(in.Observed.Containers) > 0 {
			out.Phase = pod.Terminating
		}
		return out
	}},
	"calls a pod stopped while it runs": {"terminated-early", func(in Input) Plan {
		if in.Terminate != nil && in.Phase == pod.Terminating {
			in.Observed.Containers = nil
		}
		return Decide(in)
	}},
	"does not wait for a start under way": {"terminated-early", func(in Input) Plan {
		in.InFlight = slices.DeleteFunc(slices.Clone(in.InFlight), func(op Operation) bool { return op.Kind == OpStart || op.Kind == OpSandbox })
		return Decide(in)
	}},
	"repeats what is under way": {"repeat", func(in Input) Plan {
		in.InFlight = nil
		return Decide(in)
	}},
	"never makes a sandbox": {"converge", func(in Input) Plan {
		return without(Decide(in), OpSandbox)
	}},
	"never releases": {"converge", func(in Input) Plan {
		return without(Decide(in), OpRelease)
	}},
	"never wakes": {"converge", func(in Input) Plan {
		out := Decide(in)
		for range out.Ledger.Backoffs() {
			out.Start = nil
		}
		out.WakeAt = time.Time{}
		return out
	}},
	"forgets the back-off": {"early", func(in Input) Plan {
		in.Observed.Containers = change(in.Observed.Containers, func(c *pod.Container) {
			if c.State == pod.StateExited {
				c.FinishedAt = c.StartedAt.Add(GoodRun)
			}
		})
		return Decide(in)
	}},
	"restarts whatever the policy": {"policy", func(in Input) Plan {
		if in.Pod != nil {
			in.Pod = in.Pod.DeepCopy()
			in.Pod.Spec.RestartPolicy = v1.RestartPolicyAlways
		}
		return Decide(in)
	}},
	"starts all at once": {"turn", func(in Input) Plan {
		out := Decide(in)
		for _, op := range out.Start {
			if op.Kind == OpStart && in.Pod != nil && len(in.Pod.Spec.Containers) > 1 {
				again := in
				again.InFlight = append(slices.Clone(in.InFlight), Operation{Kind: OpStop, Container: op.Container, ID: "x"})
				out.Start = append(out.Start, Decide(again).Start...)
				break
			}
		}
		return out
	}},
	"starts without volumes": {"volumes", func(in Input) Plan {
		in.Volumes = VolumesReady
		return Decide(in)
	}},
	"makes a sandbox beside a live one": {"sandbox", func(in Input) Plan {
		in.Observed.Containers = nil
		return Decide(in)
	}},
	"stops a sandbox with containers alive in it": {"sandbox-kills", func(in Input) Plan {
		out := Decide(in)
		if out.Phase == pod.Terminating && len(in.Observed.Sandboxes) > 0 {
			out.Start = append(out.Start, Operation{Kind: OpStopSandbox, ID: in.Observed.Sandboxes[0].ID})
		}
		return out
	}},
	"releases volumes at once": {"release", func(in Input) Plan {
		out := Decide(in)
		if in.Phase == pod.Terminating {
			out.Start = append(out.Start, Operation{Kind: OpRelease})
		}
		return out
	}},
	"removes before it has reported": {"remove", func(in Input) Plan {
		in.Reported = true
		return Decide(in)
	}},
	"gives more grace than is left": {"grace", func(in Input) Plan {
		out := Decide(in)
		for i := range out.Start {
			if out.Start[i].Kind == OpStop {
				out.Start[i].Grace += time.Minute
			}
		}
		return out
	}},
	"stops the sidecars with the rest": {"sidecar-order", func(in Input) Plan {
		if in.Pod != nil {
			in.Pod = in.Pod.DeepCopy()
			for i := range in.Pod.Spec.InitContainers {
				in.Pod.Spec.InitContainers[i].RestartPolicy = nil
			}
		}
		return Decide(in)
	}},
	"counts attempts again": {"attempt", func(in Input) Plan {
		out := Decide(in)
		for i := range out.Start {
			out.Start[i].Attempt = 0
		}
		return out
	}},
	"takes each crash for the first": {"count", func(in Input) Plan {
		out := Decide(in)
		for i := range out.Start {
			out.Start[i].Crashes = min(out.Start[i].Crashes, 1)
		}
		return out
	}},
	"counts the crashes of an old sandbox": {"count", func(in Input) Plan {
		out := Decide(in)
		for i, op := range out.Start {
			if newest := in.Observed.Newest(op.Container); op.Kind == OpStart && newest != nil && newest.SandboxID != op.ID {
				out.Start[i].Crashes++
			}
		}
		return out
	}},
	"starts in a sandbox that has no address": {"address", func(in Input) Plan {
		in.Observed.Sandboxes = slices.Clone(in.Observed.Sandboxes)
		for i := range in.Observed.Sandboxes {
			in.Observed.Sandboxes[i].NoAddress = false
		}
		return Decide(in)
	}},
	"does not heed a hold": {"hold", func(in Input) Plan {
		in.Hold = ""
		return Decide(in)
	}},
	"is gone before it has reported": {"gone-early", func(in Input) Plan {
		in.Reported, in.Volumes = true, VolumesReleased
		return Decide(in)
	}},
	"says nothing": {"silent", func(in Input) Plan {
		out := Decide(in)
		if len(out.Start) == 0 {
			out.Reason = ""
		}
		return out
	}},
	"wakes in the past": {"wake", func(in Input) Plan {
		out := Decide(in)
		out.WakeAt = in.Now
		return out
	}},
	"never resizes": {"resize", func(in Input) Plan {
		return without(Decide(in), OpResize)
	}},
	"resizes what has to restart": {"resize", func(in Input) Plan {
		if in.Pod != nil {
			in.Pod = in.Pod.DeepCopy()
			for i := range in.Pod.Spec.Containers {
				in.Pod.Spec.Containers[i].ResizePolicy = nil
			}
		}
		return Decide(in)
	}},
	"starts beside a resize": {"resize-start", func(in Input) Plan {
		out := Decide(in)
		again := in
		again.Allocated = ""
		for _, op := range out.Start {
			if op.Kind == OpResize {
				out.Start = append(out.Start, Decide(again).Start...)
			}
		}
		return out
	}},
	"stops what does not run": {"stop", func(in Input) Plan {
		out := Decide(in)
		for _, c := range in.Observed.Containers {
			if c.State == pod.StateExited && out.Phase == pod.Syncing && in.Observed.Stale == "" && in.Observed.Seq >= in.NeedSeq {
				out.Start = append(out.Start, Operation{Kind: OpStop, Container: c.Name, ID: c.ID})
			}
		}
		return out
	}},
}

func only(list []pod.Container, keep func(pod.Container) bool) []pod.Container {
	return slices.DeleteFunc(slices.Clone(list), func(c pod.Container) bool { return !keep(c) })
}

func change(list []pod.Container, f func(*pod.Container)) []pod.Container {
	list = slices.Clone(list)
	for i := range list {
		f(&list[i])
	}
	return list
}

func without(out Plan, kind OpKind) Plan {
	out.Start = slices.DeleteFunc(out.Start, func(op Operation) bool { return op.Kind == kind })
	return out
}

// TestMutants makes every property fail: first on walks, then on single plans.
func TestMutants(t *testing.T) {
	var inputs []Input
	n := 0
	enumerate(func(_ func() string, in Input) {
		if n++; n%97 == 0 || n%1024 < 4 {
			inputs = append(inputs, in)
		}
	})
	for _, name := range slices.Sorted(maps.Keys(mutants)) {
		m := mutants[name]
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			caught := func(bad []string) bool {
				return slices.ContainsFunc(bad, func(s string) bool { return strings.HasPrefix(s, m.property+":") })
			}
			for seed := range 600 {
				w := walk(rand.New(rand.NewSource(int64(seed))).Intn, m.decide, 200)
				w.settle()
				if caught(w.bad) {
					return
				}
			}
			for _, in := range inputs {
				if caught(checkPlan(in, m.decide(in))) {
					return
				}
			}
			t.Errorf("property %q does not notice", m.property)
		})
	}
}

// TestMutantsCoverProperties requires a mutant for every property that a check names; without one, a
// property is not known to work.
func TestMutantsCoverProperties(t *testing.T) {
	checked, have := propertiesChecked(t), map[string]bool{}
	for name, m := range mutants {
		have[m.property] = true
		if !checked[m.property] {
			t.Errorf("the mutant that %s has the property %q, which nothing checks", name, m.property)
		}
	}
	for p := range checked {
		if !have[p] {
			t.Errorf("no mutant for property %q", p)
		}
	}
	if len(checked) < 25 {
		t.Errorf("found only the properties %v", slices.Sorted(maps.Keys(checked)))
	}
}

// propertiesChecked returns the properties that the package's tests name in a call of wrong.
func propertiesChecked(t *testing.T) map[string]bool {
	t.Helper()
	files, err := filepath.Glob("*_test.go")
	testutil.Must(t, err)
	found := map[string]bool{}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		testutil.Must(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) < 2 {
				return true
			}
			name := ""
			switch f := call.Fun.(type) {
			case *ast.Ident:
				name = f.Name
			case *ast.SelectorExpr:
				name = f.Sel.Name
			}
			if name != "wrong" {
				return true
			}
			property, ok := call.Args[0].(*ast.BasicLit)
			if !ok {
				t.Errorf("%s: a check does not name its property", path)
				return true
			}
			found[strings.Trim(property.Value, `"`)] = true
			return true
		})
	}
	return found
}
