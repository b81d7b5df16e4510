package plan

import (
	"fmt"
	"reflect"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// checkPlan checks one plan against properties that hold for every plan. It shares no decisions
// with the planner. Each complaint begins with the name of the violated property.
func checkPlan(in Input, out Plan) (bad []string) {
	wrong := func(property, format string, args ...any) {
		bad = append(bad, property+": "+fmt.Sprintf(format, args...))
	}
	o := &in.Observed
	if out.Phase < in.Phase || out.Illegal != "" {
		wrong("phase", "%v becomes %v %s", in.Phase, out.Phase, out.Illegal)
	}
	if out.Reason == "" {
		wrong("silent", "a plan without a reason")
	}
	if !out.WakeAt.IsZero() && !out.WakeAt.After(in.Now) {
		wrong("wake", "wakes in the past")
	}
	if o.Stale != "" || o.Seq == 0 || o.Seq < in.NeedSeq {
		if len(out.Start)+len(out.Cancel) > 0 || out.Phase != in.Phase || !reflect.DeepEqual(in.Ledger, out.Ledger) {
			wrong("stale", "acts on an observation that says nothing")
		}
		return bad
	}

	keys := map[Key]bool{}
	starts, creating := 0, false
	for _, op := range in.InFlight {
		keys[op.Key()] = true
		creating = creating || op.Kind == OpStart || op.Kind == OpSandbox
		if op.Kind == OpStart && !ephemeral(in.Pod, op.Container) {
			starts++
		}
	}
	anyLive := false
	for i := range o.Containers {
		anyLive = anyLive || isLive(o.Containers[i])
	}
	ended := out.Phase > pod.Syncing || in.Terminate != nil || in.Pod == nil || in.Pod.DeletionTimestamp != nil

	for _, op := range out.Start {
		if keys[op.Key()] {
			wrong("repeat", "%v %s%s is under way already", op.Kind, op.Container, op.ID)
		}
		keys[op.Key()] = true
		switch op.Kind {
		case OpVolumes, OpSandbox, OpPull, OpStart, OpHook:
			if ended {
				wrong("start-after-end", "%v %s", op.Kind, op.Container)
			}
			if in.Hold != "" {
				wrong("hold", "%v %s", op.Kind, op.Container)
			}
		}
		switch op.Kind {
		case OpResize:
			if ended || in.Hold != "" || len(o.Sandboxes) == 0 || !o.Sandboxes[0].Ready || op.ID != o.Sandboxes[0].ID {
				wrong("resize", "a resize of what does not run, or is on hold")
				continue
			}
			for i := range o.Containers {
				if mustRestart(in, &o.Containers[i]) {
					wrong("resize", "a resize before %s has stopped for it", o.Containers[i].ID)
				}
			}
		case OpStart:
			for k := range keys {
				if k.Kind == OpResize {
					wrong("resize-start", "%s starts beside a resize", op.Container)
				}
			}
			if !ephemeral(in.Pod, op.Container) {
				starts++
			}
			checkStart(in, op, wrong)
		case OpSandbox:
			if anyLive {
				wrong("sandbox", "a new one while containers of an old one live")
			}
			for _, s := range o.Sandboxes {
				if s.Ready || s.Attempt >= op.Attempt {
					wrong("sandbox", "attempt %d beside %s", op.Attempt, s.ID)
				}
			}
		case OpStop:
			checkStop(in, out, op, wrong)
		case OpStopSandbox:
			for _, c := range o.Containers {
				if c.SandboxID == op.ID && isLive(c) {
					wrong("sandbox-kills", "%s lives in %s", c.ID, op.ID)
				}
			}
			for _, f := range in.InFlight {
				if f.Kind == OpStart {
					wrong("sandbox-kills", "%s is being started", f.Container)
				}
			}
		case OpRelease:
			for _, s := range o.Sandboxes {
				if s.Ready {
					wrong("release", "sandbox %s is ready", s.ID)
				}
			}
			if out.Phase != pod.Terminated || anyLive {
				wrong("release", "in %v", out.Phase)
			}
		case OpRemoveSandbox:
			if out.Phase != pod.Terminated || !in.Reported {
				wrong("remove", "the evidence goes before it is reported")
			}
		case OpRemoveContainer:
			for _, c := range o.Containers {
				if c.ID == op.ID && isLive(c) {
					wrong("remove", "%s may be running", c.ID)
				}
			}
			if out.Phase > pod.Syncing && !in.Reported {
				wrong("remove", "the evidence goes before it is reported")
			}
		}
	}
	if starts > 1 {
		wrong("turn", "%d containers start at once", starts)
	}
	if in.Phase < pod.Terminated && out.Phase >= pod.Terminated && (anyLive || creating) {
		wrong("terminated-early", "live %v, creating %v", anyLive, creating)
	}
	if out.Phase == pod.Gone && (in.Volumes != VolumesReleased || !in.Reported || anyLive) {
		wrong("gone-early", "volumes %v, reported %v, live %v", in.Volumes, in.Reported, anyLive)
	}
	return bad
}

// mustRestart says that a running container has to be restarted for other memory, by its
// resizePolicy.
func mustRestart(in Input, c *pod.Container) bool {
	spec := pod.Find(pod.AllContainers(&in.Pod.Spec), c.Name)
	if spec == nil || c.State != pod.StateRunning || c.Size == nil || c.SandboxID != in.Observed.Sandboxes[0].ID || len(spec.ResizePolicy) == 0 {
		return false
	}
	have := *c.Size
	if s := in.Ledger.Containers[c.ID].Size; s != nil {
		have = *s
	}
	return have.MemoryRequest != spec.Resources.Requests.Memory().Value()
}

func isLive(c pod.Container) bool {
	return c.State == pod.StateRunning || c.State == pod.StateUnknown
}

func ephemeral(p *v1.Pod, name string) bool {
	if p == nil {
		return false
	}
	for _, e := range p.Spec.EphemeralContainers {
		if e.Name == name {
			return true
		}
	}
	return false
}

// kubeletDelays are the waits, in seconds, after the exit of an instance that follows 0, 1, 2, ...
// crashes in its sandbox.
var kubeletDelays = []time.Duration{0, 10, 20, 40, 80, 160, 300}

// checkBackoff checks when an instance starts, and the crash count that it gets. Only exits in the
// current sandbox count, of instances with the container's current image and size that did not have
// a good run.
func checkBackoff(in Input, op Operation, newest *pod.Container, wrong func(string, string, ...any)) {
	if newest == nil {
		return // removed by a restart of every container
	}
	want := pod.Find(pod.AllContainers(&in.Pod.Spec), op.Container)
	other := newest.Size != nil && *newest.Size != pod.SizeOf(&in.Pod.Spec, want) || newest.SpecHash != in.Hashes[op.Container]
	if newest.SandboxID != in.Observed.Sandboxes[0].ID || other {
		if op.Crashes != 0 {
			wrong("count", "%s starts with %d crashes, and none has been", op.Container, op.Crashes)
		}
		return
	}
	crashes := int(newest.Attempt) - int(in.Observed.Sandboxes[0].Attempt)
	if newest.Crashes != nil {
		crashes = int(*newest.Crashes)
	}
	if newest.FinishedAt.Sub(newest.StartedAt) >= 10*time.Minute {
		crashes = 0
	}
	if wait := kubeletDelays[min(max(crashes, 0), len(kubeletDelays)-1)] * time.Second; in.Now.Before(newest.FinishedAt.Add(wait)) &&
		!in.Now.Before(newest.FinishedAt) { // else the clock was set back, and the exit's time means nothing
		wrong("early", "%s starts %v after an exit that follows %d crashes", op.Container, in.Now.Sub(newest.FinishedAt), crashes)
	}
	if int(op.Crashes) != max(crashes, 0)+1 {
		wrong("count", "%s starts with %d crashes after an instance with %d", op.Container, op.Crashes, crashes)
	}
}

func checkStart(in Input, op Operation, wrong func(string, string, ...any)) {
	o := &in.Observed
	if len(o.Sandboxes) == 0 || !o.Sandboxes[0].Ready || o.Sandboxes[0].ID != op.ID {
		wrong("sandbox", "%s starts in %q", op.Container, op.ID)
		return
	}
	if in.Volumes != VolumesReady {
		wrong("volumes", "%s starts without them", op.Container)
	}
	if o.Sandboxes[0].NoAddress {
		wrong("address", "%s starts in a sandbox that has none", op.Container)
	}
	box := o.Sandboxes[0].ID
	main, index := false, -1
	for _, c := range in.Pod.Spec.Containers {
		main = main || c.Name == op.Container
	}
	for i, c := range in.Pod.Spec.InitContainers {
		if c.Name == op.Container {
			index = i
		}
	}
	var newest *pod.Container
	for i := range o.Containers {
		c := &o.Containers[i]
		if c.Name != op.Container {
			continue
		}
		if c.State != pod.StateExited {
			wrong("two-live", "%s is %v, and %s starts", c.ID, c.State, op.Container)
		}
		if c.Attempt >= op.Attempt {
			wrong("attempt", "%s has %d, the new one %d", c.ID, c.Attempt, op.Attempt)
		}
		if newest == nil || c.Attempt > newest.Attempt {
			newest = c
		}
	}
	if newest != nil && newest.State == pod.StateExited {
		spec := pod.Find(pod.AllContainers(&in.Pod.Spec), op.Container)
		once := in.Pod.Spec.RestartPolicy == v1.RestartPolicyNever || in.Pod.Spec.RestartPolicy == v1.RestartPolicyOnFailure && newest.ExitCode == 0
		if main && spec.RestartPolicy == nil && once && !in.Ledger.Containers[newest.ID].Again {
			wrong("policy", "%s exited with %d and starts again under %s", op.Container, newest.ExitCode, in.Pod.Spec.RestartPolicy)
		}
	}
	checkBackoff(in, op, newest, wrong)

	// Order of initialisation, read from the front: everything before must be done.
	done := func(i int) (exists, ok bool) {
		c := in.Pod.Spec.InitContainers[i]
		side := c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways
		for _, got := range o.Containers {
			if got.Name != c.Name || got.SandboxID != box {
				continue
			}
			if !side {
				return true, got.State == pod.StateExited && got.ExitCode == 0
			}
			return true, got.State == pod.StateRunning && (c.StartupProbe == nil || in.Verdicts[got.ID].Startup == pod.VerdictSuccess)
		}
		return false, false
	}
	mainHere := false
	for _, c := range in.Pod.Spec.Containers {
		for _, got := range o.Containers {
			mainHere = mainHere || got.Name == c.Name && got.SandboxID == box
		}
	}
	last := len(in.Pod.Spec.InitContainers) - 1
	if main && !mainHere && last >= 0 {
		if _, ok := done(last); !ok {
			wrong("main-before-init", "%s starts before %s was done", op.Container, in.Pod.Spec.InitContainers[last].Name)
		}
	}
	if index > 0 && !mainHere {
		vouched := false
		for j := index; j <= last; j++ {
			exists, _ := done(j)
			vouched = vouched || exists
		}
		if _, ok := done(index - 1); !ok && !vouched {
			wrong("main-before-init", "%s starts before %s was done", op.Container, in.Pod.Spec.InitContainers[index-1].Name)
		}
	}
}

func checkStop(in Input, out Plan, op Operation, wrong func(string, string, ...any)) {
	found := false
	for _, c := range in.Observed.Containers {
		found = found || c.ID == op.ID && isLive(c)
	}
	if !found {
		wrong("stop", "%s does not run", op.ID)
	}
	if out.Terminate == nil || out.Phase == pod.Syncing {
		return
	}
	end := out.Terminate.At.Add(out.Terminate.Grace)
	if left := max(end.Sub(in.Now), 2*time.Second); op.Grace > left+time.Second {
		wrong("grace", "%s gets %v of %v", op.Container, op.Grace, left)
	}
	side := func(name string) bool {
		for _, c := range in.Pod.Spec.InitContainers {
			if c.Name == name && c.RestartPolicy != nil {
				return true
			}
		}
		return false
	}
	if in.Pod != nil && side(op.Container) && end.After(in.Now) {
		for _, c := range in.Observed.Containers {
			if isLive(c) && !side(c.Name) {
				wrong("sidecar-order", "%s stops while %s runs", op.Container, c.Name)
			}
		}
	}
}
