package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// world simulates a runtime, an API server and a pod worker. Plans are executed on it, calls can be
// lost on it, and violated properties are recorded in bad.
type world struct {
	decide func(Input) Plan
	reword bool // replace every textual reason before it is used

	// The host.
	now       time.Time
	boxes     []pod.Sandbox    // newest first
	cons      []*pod.Container // in order of creation
	ids       int
	late      []Operation // calls that were given up, and that the runtime will still carry out
	runs      map[string]int
	restarts  int             // how often an exit has restarted all containers
	initsDone map[string]bool // by sandbox ID and init name: it was done there

	// The API server; nil once the object is deleted.
	pod *v1.Pod

	// The worker.
	seq, needSeq uint64
	seen         pod.Observed
	stale, hold  string
	phase        pod.Phase
	terminate    *Terminate
	ledger       Ledger
	flights      []Operation
	volumes      VolumeState
	reported     bool
	verdicts     map[string]pod.Verdicts
	hashes       map[string]string
	ended        bool // this pod has left Syncing, in any process

	given  string              // the pod's allocation, in its written form
	cgroup string              // the allocation that the pod's cgroup is sized for
	sizes  map[string]pod.Size // the actual size of each container, by ID
	// record is the host's record of the last resize that began.
	record struct {
		box    string
		cgroup Cgroup
		sized  map[string]pod.Size
	}

	bad []string
}

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newWorld(p *v1.Pod, decide func(Input) Plan) *world {
	return &world{decide: decide, pod: p, now: epoch, runs: map[string]int{}, initsDone: map[string]bool{},
		verdicts: map[string]pod.Verdicts{}, hashes: map[string]string{}, sizes: map[string]pod.Size{}}
}

// allocated is the pod's allocation, which equals what it asks for.
func (w *world) allocated() string {
	if w.pod == nil {
		return ""
	}
	if w.given == "" {
		w.given = pod.AllocationOf(w.pod).String()
	}
	return w.given
}

// resizeTo sets the named container's requests: cpu in millicores, memory in bytes.
func (w *world) resizeTo(name string, cpu, memory int64) {
	if w.pod == nil {
		return
	}
	w.pod, w.given = w.pod.DeepCopy(), ""
	if c := pod.Find(pod.AllContainers(&w.pod.Spec), name); c != nil {
		c.Resources.Requests = v1.ResourceList{v1.ResourceCPU: *resource.NewMilliQuantity(cpu, resource.DecimalSI),
			v1.ResourceMemory: *resource.NewQuantity(memory, resource.BinarySI)}
	}
}

func (w *world) wrong(property, format string, args ...any) {
	w.bad = append(w.bad, property+": "+fmt.Sprintf(format, args...))
}

// observe publishes the runtime's current state, or that it is unreachable.
func (w *world) observe() {
	if w.stale != "" {
		w.seen.Stale = w.stale
		return
	}
	w.seq++
	o := pod.Observed{Ref: pod.Ref{Namespace: "ns", Name: "web", UID: "u1"}, Seq: w.seq, At: w.now}
	o.Sandboxes = slices.Clone(w.boxes)
	for _, c := range w.cons {
		o.Containers = append(o.Containers, *c)
	}
	sortContainers(o.Containers)
	w.seen = o
	for _, c := range w.cons {
		if c.State == pod.StateExited && c.ExitCode == 0 || c.State == pod.StateRunning {
			w.initsDone[c.SandboxID+"/"+c.Name] = true
		}
	}
}

func sortContainers(list []pod.Container) {
	slices.SortStableFunc(list, func(a, b pod.Container) int {
		if a.Name != b.Name {
			return strings.Compare(a.Name, b.Name)
		}
		return int(b.Attempt) - int(a.Attempt)
	})
}

func (w *world) input() Input {
	return Input{Now: w.now, Pod: w.pod, Phase: w.phase, Terminate: w.terminate, Observed: w.seen, NeedSeq: w.needSeq,
		Verdicts: w.verdicts, Ledger: w.ledger, InFlight: slices.Clone(w.flights), Volumes: w.volumes,
		Reported: w.reported, Hold: w.hold, Hashes: w.hashes, Allocated: w.allocated()}
}

// tick is one iteration of the worker: observe, decide, begin.
func (w *world) tick() Plan {
	w.observe()
	in := w.input()
	out := w.decide(in)
	w.bad = append(w.bad, checkPlan(in, out)...)
	w.phase, w.terminate, w.ledger = out.Phase, out.Terminate, out.Ledger
	if w.phase > pod.Syncing {
		w.ended = true
	}
	if w.reword {
		w.ledger.Containers = maps.Clone(w.ledger.Containers)
		for id, r := range w.ledger.Containers {
			if r.Why.Cause != StopNone {
				r.Why.Words = "reworded"
				w.ledger.Containers[id] = r
			}
		}
	}
	for _, op := range out.Start {
		if w.reword {
			op.Reason = "reworded"
		}
		if w.ended && (op.Kind == OpStart || op.Kind == OpSandbox || op.Kind == OpPull || op.Kind == OpVolumes) {
			w.wrong("start-after-end", "%v of %s begins in %v", op.Kind, op.Container, w.phase)
		}
		w.flights = append(w.flights, op)
	}
	w.report(in.Observed.Stale == "")
	return out
}

// report stands for the status writer and the API server.
func (w *world) report(fresh bool) {
	if w.pod == nil {
		w.reported = true
		return
	}
	p := w.pod.DeepCopy()
	if p.Status.StartTime == nil {
		t := metav1.NewTime(w.now)
		p.Status.StartTime = &t
	}
	if fresh {
		p.Status.ContainerStatuses = w.statuses(p.Spec.Containers, p.Status.ContainerStatuses)
		p.Status.InitContainerStatuses = w.statuses(p.Spec.InitContainers, p.Status.InitContainerStatuses)
	}
	w.pod = p
	if w.phase < pod.Terminated || w.volumes != VolumesReleased {
		return
	}
	w.reported = true
	if p.DeletionTimestamp != nil {
		w.pod = nil
		return
	}
	p.Status.Phase = v1.PodFailed
}

func (w *world) statuses(specs []v1.Container, old []v1.ContainerStatus) []v1.ContainerStatus {
	var out []v1.ContainerStatus
	for i := range specs {
		st := v1.ContainerStatus{Name: specs[i].Name}
		for _, o := range old {
			if o.Name == st.Name {
				st = o
			}
		}
		if c := w.seen.Newest(st.Name); c != nil {
			st.State = v1.ContainerState{}
			switch c.State {
			case pod.StateRunning:
				st.State.Running = &v1.ContainerStateRunning{}
			case pod.StateExited:
				st.State.Terminated = &v1.ContainerStateTerminated{ExitCode: c.ExitCode}
			}
			st.RestartCount = int32(c.Attempt)
		}
		out = append(out, st)
	}
	return out
}

// ending is how an operation ends.
type ending int

const (
	endOK      ending = iota
	endErr            // refused, nothing was done
	endBefore         // lost before it was carried out
	endAfter          // carried out, the reply lost
	endHalf           // a start that was lost between create and start; else like endBefore
	endLate           // given up, and carried out some time later
	endBadHook        // a start whose postStart failed
	endings
)

// finish ends the operation in flight with index i.
func (w *world) finish(i int, how ending, reason, err string) {
	op := w.flights[i]
	w.flights = slices.Delete(w.flights, i, i+1)
	out := Outcome{Operation: op, At: w.now}
	switch how {
	case endErr:
		out.Err, out.Reason = err, reason
	case endBefore:
		out.Transport, out.Err = true, "connection lost"
	case endHalf:
		out.Transport, out.Err = true, "connection lost"
		if op.Kind == OpStart {
			w.create(op, pod.StateCreated)
		}
	case endLate:
		out.Transport, out.Err = true, "deadline exceeded"
		w.late = append(w.late, op)
	case endAfter:
		out.Transport, out.Err = true, "connection lost"
		out.ContainerID, _ = w.carryOut(op)
	default:
		out.ContainerID, out.Err = w.carryOut(op)
		if out.Err != "" {
			out.Reason = "RunContainerError"
		} else if op.Kind == OpStart || op.Kind == OpHook || op.PreStop {
			out.Hooked = true
			if how == endBadHook && op.Kind == OpStart {
				out.Err, out.Reason = "hook exited with 1", "PostStartHookError"
			}
		}
	}
	if op.Kind == OpResize && how != endErr {
		out.Sized = w.record.sized
		if out.Transport {
			out.Sized = w.unsure(op)
		}
	}
	if out.Err == "" {
		switch op.Kind {
		case OpVolumes:
			w.volumes = VolumesReady
		case OpRelease:
			w.volumes = VolumesReleased
		}
	}
	w.ledger = Record(w.ledger, out, w.pod, 0)
	if op.Kind.Mutates() {
		w.needSeq = w.seq + 1
	}
}

// carryOut applies the operation to the simulated host.
func (w *world) carryOut(op Operation) (id, err string) {
	switch op.Kind {
	case OpSandbox:
		for _, b := range w.boxes {
			if b.Attempt == op.Attempt {
				return "", "the sandbox's name is reserved"
			}
		}
		w.ids++
		box := pod.Sandbox{ID: fmt.Sprintf("box-%d", w.ids), Attempt: op.Attempt, Ready: true, CreatedAt: w.now,
			Annotations: map[string]string{pod.AnnotationAllocation: w.allocated()}}
		w.boxes = append([]pod.Sandbox{box}, w.boxes...)
		w.cgroup = w.allocated()
	case OpResize:
		w.cgroup = op.Allocated
		sized := map[string]pod.Size{}
		for _, c := range w.cons {
			if given, ok := pod.ParseAllocation(op.Allocated); ok && w.pod != nil && c.State == pod.StateRunning && c.SandboxID == op.ID {
				p := given.Apply(w.pod)
				w.sizes[c.ID] = pod.SizeOf(&p.Spec, pod.Find(pod.AllContainers(&p.Spec), c.Name))
				sized[c.ID] = w.sizes[c.ID]
			}
		}
		w.record.box, w.record.cgroup, w.record.sized = op.ID, Cgroup{Allocated: op.Allocated}, sized
	case OpStart:
		return w.create(op, pod.StateRunning)
	case OpStop:
		for _, c := range w.cons {
			if c.ID == op.ID && live(c) {
				w.exit(c, 143)
			}
		}
	case OpStopSandbox:
		for i := range w.boxes {
			if w.boxes[i].ID == op.ID {
				w.boxes[i].Ready = false
			}
		}
		for _, c := range w.cons {
			if c.SandboxID == op.ID && live(c) {
				w.exit(c, 137)
			}
		}
	case OpRemoveContainer:
		w.cons = slices.DeleteFunc(w.cons, func(c *pod.Container) bool { return c.ID == op.ID })
	case OpRemoveSandbox:
		w.boxes = slices.DeleteFunc(w.boxes, func(b pod.Sandbox) bool { return b.ID == op.ID })
		w.cons = slices.DeleteFunc(w.cons, func(c *pod.Container) bool { return c.SandboxID == op.ID })
	}
	return "", ""
}

// unsure is what is known of the containers of a resize with an unknown result.
func (w *world) unsure(op Operation) map[string]pod.Size {
	out := map[string]pod.Size{}
	for i := range w.seen.Containers {
		c := &w.seen.Containers[i]
		have := Actuated(w.ledger, c)
		if given, ok := pod.ParseAllocation(op.Allocated); ok && w.pod != nil && c.State == pod.StateRunning && c.SandboxID == op.ID && have != nil {
			p := given.Apply(w.pod)
			out[c.ID] = Unsure(*have, pod.SizeOf(&p.Spec, pod.Find(pod.AllContainers(&p.Spec), c.Name)))
		}
	}
	return out
}

// create makes a container as a runtime does: name and attempt are reserved, and the sandbox must
// be ready.
func (w *world) create(op Operation, state pod.ContainerState) (id, err string) {
	i := slices.IndexFunc(w.boxes, func(b pod.Sandbox) bool { return b.ID == op.ID && b.Ready })
	if i < 0 {
		return "", "the sandbox is not ready"
	}
	for _, c := range w.cons {
		if c.Name == op.Container && c.Attempt == op.Attempt {
			return "", "the container's name is reserved"
		}
	}
	w.ids++
	c := &pod.Container{ID: fmt.Sprintf("%s-%d", op.Container, w.ids), Name: op.Container, SandboxID: op.ID, Attempt: op.Attempt,
		State: state, CreatedAt: w.now, SpecHash: w.hashes[op.Container], Crashes: &op.Crashes}
	if w.pod != nil {
		c.Annotations = map[string]string{pod.AnnotationImage: pod.Find(pod.AllContainers(&w.pod.Spec), op.Container).Image}
		size := pod.SizeOf(&w.pod.Spec, pod.Find(pod.AllContainers(&w.pod.Spec), op.Container))
		c.Size, w.sizes[c.ID] = &size, size
	}
	if state == pod.StateRunning {
		c.StartedAt = w.now
		w.startedOne(c)
	}
	w.cons = append(w.cons, c)
	return c.ID, ""
}

// startedOne checks a start against the state of the simulated host.
func (w *world) startedOne(c *pod.Container) {
	w.runs[c.Name]++
	for _, other := range w.cons {
		if other.Name == c.Name && live(other) {
			w.wrong("two-live", "%s and %s run at once", other.ID, c.ID)
		}
	}
	if w.pod == nil {
		return
	}
	for i := range w.pod.Spec.Containers {
		if w.pod.Spec.Containers[i].Name != c.Name {
			continue
		}
		for j := range w.pod.Spec.InitContainers {
			if name := w.pod.Spec.InitContainers[j].Name; !w.initsDone[c.SandboxID+"/"+name] {
				w.wrong("main-before-init", "%s starts in %s before %s was done there", c.Name, c.SandboxID, name)
			}
		}
	}
	if pod.Find(pod.AllContainers(&w.pod.Spec), c.Name).RestartPolicy == nil && w.pod.Spec.RestartPolicy == v1.RestartPolicyNever && w.runs[c.Name] > 1+w.restarts && len(w.ledger.Again()) == 0 {
		w.wrong("policy", "%s runs a second time under Never", c.Name)
	}
}

func (w *world) exit(c *pod.Container, code int32) {
	if w.pod != nil && !w.hasFinished() {
		if rule := pod.RestartRule(pod.Find(pod.AllContainers(&w.pod.Spec), c.Name), code); rule != nil && rule.Action == v1.ContainerRestartRuleActionRestartAllContainers {
			w.restarts++
		}
	}
	c.State, c.ExitCode, c.FinishedAt = pod.StateExited, code, w.now
	delete(w.verdicts, c.ID)
}

// hasFinished reports whether every main container has exited.
func (w *world) hasFinished() bool {
	for i := range w.pod.Spec.Containers {
		exited := false
		for _, c := range w.cons {
			if c.Name == w.pod.Spec.Containers[i].Name {
				exited = c.State == pod.StateExited // the last one decides
			}
		}
		if !exited {
			return false
		}
	}
	return true
}

// crash kills the worker's process and starts a new one: its memory is lost, and how says whether
// its operations in flight were carried out.
func (w *world) crash(how func(Operation) ending) {
	for _, op := range w.flights {
		if op.Kind == OpResize { // the next process finds that it had begun, but not how it ended
			before := w.unsure(op)
			defer func() {
				w.ledger = Resized(Ledger{}, before, map[string]Cgroup{op.ID: {Allocated: op.Was.Allocated, Unsure: true}})
			}()
		}
		switch how(op) {
		case endAfter, endOK:
			w.carryOut(op)
		case endHalf:
			if op.Kind == OpStart {
				w.create(op, pod.StateCreated)
			}
		case endLate:
			w.late = append(w.late, op)
		}
	}
	w.flights, w.ledger, w.terminate, w.phase = nil, Ledger{}, nil, pod.Syncing
	if r := w.record; len(w.boxes) > 0 && r.box == w.boxes[0].ID {
		w.ledger = Resized(Ledger{}, r.sized, map[string]Cgroup{r.box: r.cgroup})
	}
	w.volumes, w.reported, w.seen, w.needSeq, w.seq = VolumesNone, w.pod == nil, pod.Observed{}, 0, 0
	w.verdicts = map[string]pod.Verdicts{}
	if w.pod == nil {
		w.terminate = &Terminate{At: w.now, Grace: 30 * time.Second, Cause: CauseOrphan}
	}
	// The end of a pod that was not reported yet is found again by observation.
	w.ended = w.pod == nil || w.pod.DeletionTimestamp != nil || w.pod.Status.Phase == v1.PodFailed
}

// catchUp carries out the calls that were given up.
func (w *world) catchUp() {
	for _, op := range w.late {
		if op.Kind == OpResize {
			continue // no observation would show it
		}
		w.carryOut(op)
	}
	w.late = nil
}

func (w *world) remove(grace time.Duration) {
	if w.pod == nil {
		return
	}
	p := w.pod.DeepCopy()
	t := metav1.NewTime(w.now.Add(grace))
	s := int64(grace / time.Second)
	if p.DeletionTimestamp == nil {
		p.DeletionTimestamp = &t
	}
	p.DeletionGracePeriodSeconds = &s
	w.pod = p
	if w.phase == pod.Gone { // the finished pod's worker has ended, so a new one begins
		w.crash(func(Operation) ending { return endBefore })
	}
	w.terminate = Merge(w.terminate, &Terminate{At: w.now, Grace: grace, Cause: CauseDeleted})
}
