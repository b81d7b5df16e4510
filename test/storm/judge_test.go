package storm

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// strike is something that the test did to a pod, or to one instance of a container.
type strike struct {
	kind string
	uid  string
	id   string // of the instance; the sandbox's, if kind is strikeSandbox; or empty
	at   time.Time
}

// life is one pod, by UID, as the API server reported it.
type life struct {
	versions []labtest.Version
	gone     time.Time // when the API object was seen to be gone; zero: it exists
}

// evidence is everything known of a storm from outside Bowline.
type evidence struct {
	instances []labtest.Instance // of the storm's namespace alone
	lives     map[string]life    // by UID
	strikes   []strike
	kills     []time.Time // of our process
}

// lag is how late an event of the API server may reach us under load, compared with its effect in
// containerd.
const lag = 3 * time.Second

// judge returns the violations of the package comment's rules.
func (e *evidence) judge() []string {
	var bad []string
	type key struct{ uid, container string }
	chains := map[key][]labtest.Instance{}
	for _, i := range e.instances {
		if i.Created.IsZero() {
			bad = append(bad, fmt.Sprintf("%s was started, and never created", i.ID))
			continue
		}
		name := i.Container
		if i.Sandbox {
			name = "" // a container has a name
		}
		k := key{i.UID, name}
		chains[k] = append(chains[k], i)
		if what := e.unexplained(&i); what != "" {
			bad = append(bad, what)
		}
	}
	for k, chain := range chains {
		slices.SortFunc(chain, func(a, b labtest.Instance) int { return a.Created.Compare(b.Created) })
		for n := 1; n < len(chain); n++ {
			bad = append(bad, e.next(&chain[n-1], &chain[n], chains[key{k.uid, ""}])...)
		}
	}
	for uid, l := range e.lives {
		bad = append(bad, e.unready(uid, l)...)
		bad = append(bad, e.restarts(uid, l)...)
		bad = append(bad, e.end(uid, l)...)
		bad = append(bad, e.backwards(uid, l)...)
	}
	bad = append(bad, e.names()...)
	slices.Sort(bad)
	return bad
}

// say describes an instance.
func say(i *labtest.Instance) string {
	what := i.Container
	if i.Sandbox {
		what = "the sandbox"
	}
	s := fmt.Sprintf("%s of %s (%s, %.12s, attempt %d, created %s", what, i.Pod, i.UID, i.ID, i.Attempt, clock(i.Created))
	if !i.Started.IsZero() {
		s += ", started " + clock(i.Started)
	}
	if !i.Exited.IsZero() {
		s += fmt.Sprintf(", ended %s with %d", clock(i.Exited), i.Code)
	}
	return s + ")"
}

func clock(t time.Time) string { return t.Local().Format("15:04:05.000") }

// cut reports whether its start was in flight when our process was killed, so that the runtime may
// have given it up.
func (e *evidence) cut(i *labtest.Instance) bool {
	for _, k := range e.kills {
		if i.Created.After(k.Add(time.Second)) || k.Sub(i.Created) > 2*time.Minute {
			continue
		}
		if i.Started.IsZero() || i.Started.After(k.Add(-2*time.Second)) {
			return true
		}
	}
	return false
}

// pod is the newest version of a pod, or nil.
func (l life) pod() *v1.Pod {
	if len(l.versions) == 0 {
		return nil
	}
	return l.versions[len(l.versions)-1].Pod
}

// asked is when the pod's deletion was requested, to the second; zero: it was not.
func (l life) asked() time.Time {
	for _, v := range l.versions {
		if v.DeletionTimestamp != nil {
			grace := time.Duration(0)
			if v.DeletionGracePeriodSeconds != nil {
				grace = time.Duration(*v.DeletionGracePeriodSeconds) * time.Second
			}
			return v.DeletionTimestamp.Add(-grace)
		}
	}
	return time.Time{}
}

// deleted reports whether the pod's deletion had been requested by a time, or the pod was deleted
// by force.
func (e *evidence) deleted(uid string, by time.Time) bool {
	l := e.lives[uid]
	if asked := l.asked(); !asked.IsZero() && !asked.After(by.Add(time.Second)) {
		return true
	}
	return !l.gone.IsZero() && l.gone.Before(by.Add(lag)) || e.forced(uid)
}

func (e *evidence) forced(uid string) bool {
	return slices.ContainsFunc(e.strikes, func(s strike) bool { return s.kind == strikeForce && s.uid == uid })
}

// unexplained describes an instance that ended for no known reason, or returns "".
func (e *evidence) unexplained(i *labtest.Instance) string {
	if i.Exited.IsZero() || i.Started.IsZero() || e.deleted(i.UID, i.Exited) || e.cut(i) {
		return ""
	}
	p := e.lives[i.UID].pod()
	if p == nil {
		return say(i) + " is of a pod that the API server never had"
	}
	for _, s := range e.strikes {
		if s.uid != i.UID || s.at.After(i.Exited) || s.at.Before(i.Created) {
			continue
		}
		if s.id == i.ID || s.kind == strikeSandbox {
			return ""
		}
	}
	if slices.Contains(strings.Fields(p.Annotations[annotationEnds]), fmt.Sprintf("%s=%d", i.Container, i.Code)) {
		return ""
	}
	switch kindOf(p, i) {
	case initContainer:
		if i.Code == 0 {
			return ""
		}
	case sidecar, sandbox:
		if e.over(p, i.Exited) {
			return ""
		}
	}
	return say(i) + " ended, and nobody knows why"
}

const (
	regular = iota
	initContainer
	sidecar
	sandbox
)

func kindOf(p *v1.Pod, i *labtest.Instance) int {
	if i.Sandbox {
		return sandbox
	}
	for _, c := range p.Spec.InitContainers {
		if c.Name != i.Container {
			continue
		}
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			return sidecar
		}
		return initContainer
	}
	return regular
}

// last is the newest instance of a container that was created by a time, or nil.
func (e *evidence) last(uid, container string, by time.Time) *labtest.Instance {
	var newest *labtest.Instance
	for n := range e.instances {
		i := &e.instances[n]
		if i.UID == uid && !i.Sandbox && i.Container == container && !i.Created.After(by) && (newest == nil || i.Created.After(newest.Created)) {
			newest = i
		}
	}
	return newest
}

// over reports whether by a time all regular containers of the pod had ended for good.
func (e *evidence) over(p *v1.Pod, by time.Time) bool {
	if p.Spec.RestartPolicy == v1.RestartPolicyAlways {
		return false
	}
	for _, c := range p.Spec.Containers {
		i := e.last(string(p.UID), c.Name, by)
		if i == nil || i.Exited.IsZero() || i.Exited.After(by) || p.Spec.RestartPolicy == v1.RestartPolicyOnFailure && i.Code != 0 {
			return false
		}
	}
	return true
}

// next judges two instances of one container, the second the first's successor. sandboxes are the
// pod's.
func (e *evidence) next(a, b *labtest.Instance, sandboxes []labtest.Instance) []string {
	var bad []string
	pair := func(what string) { bad = append(bad, say(a)+" was followed by "+say(b)+": "+what) }
	started := !a.Started.IsZero()
	switch {
	case !started && !e.cut(a):
		pair("the first was never started")
	case started && a.Exited.IsZero():
		pair("the first has not ended")
	case started && a.Exited.After(b.Created):
		pair("the first had not ended")
	}
	if !a.Sandbox && (b.Attempt < a.Attempt || started && b.Attempt == a.Attempt) {
		pair("that is no higher attempt")
	}
	p := e.lives[a.UID].pod()
	if p == nil || !started || e.cut(a) {
		return bad
	}
	switch kindOf(p, a) {
	case regular:
		if p.Spec.RestartPolicy == v1.RestartPolicyNever || p.Spec.RestartPolicy == v1.RestartPolicyOnFailure && a.Code == 0 {
			pair("by its pod's policy, " + string(p.Spec.RestartPolicy) + ", there was to be none")
		}
	case initContainer:
		another := slices.ContainsFunc(sandboxes, func(s labtest.Instance) bool { return s.Created.After(a.Created) && s.Created.Before(b.Created) })
		if a.Code == 0 && !another {
			pair("an init container that was done ran again in the same sandbox")
		}
	}
	return bad
}

// unready judges where readiness was lost.
func (e *evidence) unready(uid string, l life) []string {
	var bad []string
	var since time.Time
	for n := 1; n < len(l.versions); n++ {
		a, b := l.versions[n-1], l.versions[n]
		if b.DeletionTimestamp != nil {
			break
		}
		was, is := labtest.IsReady(a.Pod), labtest.IsReady(b.Pod)
		if was && since.IsZero() {
			since = a.At
		}
		if !was {
			since = time.Time{}
		}
		if was && !is && !e.ended(uid, "", since.Add(-lag), b.At) {
			bad = append(bad, fmt.Sprintf("%s (%s) was Ready until %s, when no container of it had ended: %s", b.Name, uid, clock(b.At), labtest.Describe(b.Pod)))
		}
		for c := range pod.Statuses(&a.Status) {
			now := labtest.Container(b.Pod, c.Name)
			if now == nil || !c.Ready || now.Ready || now.ContainerID != c.ContainerID {
				continue
			}
			if _, id, _ := strings.Cut(c.ContainerID, "://"); !e.ended(uid, id, time.Time{}, b.At) {
				bad = append(bad, fmt.Sprintf("%s of %s (%s) was ready until %s, and ran on", c.Name, b.Name, uid, clock(b.At)))
			}
		}
	}
	return bad
}

// ended reports whether an instance of the pod, with this ID if given, ended between two times.
func (e *evidence) ended(uid, id string, after, by time.Time) bool {
	return slices.ContainsFunc(e.instances, func(i labtest.Instance) bool {
		return i.UID == uid && (id == "" || i.ID == id) && !i.Exited.IsZero() && i.Exited.After(after) && !i.Exited.After(by)
	})
}

// restarts checks that each restart that a status counts is the end of an instance.
func (e *evidence) restarts(uid string, l life) []string {
	var bad []string
	most := map[string]int32{}
	for _, v := range l.versions {
		for c := range pod.Statuses(&v.Status) {
			if c.RestartCount <= most[c.Name] {
				continue
			}
			most[c.Name] = c.RestartCount
			ends := int32(0)
			for n := range e.instances {
				i := &e.instances[n]
				if i.UID == uid && !i.Sandbox && i.Container == c.Name && (!i.Exited.IsZero() && !i.Exited.After(v.At) || i.Started.IsZero() && e.cut(i)) {
					ends++
				}
			}
			if ends < c.RestartCount {
				bad = append(bad, fmt.Sprintf("%s of %s (%s) has %d restarts at %s, and ended %d times", c.Name, v.Name, uid, c.RestartCount, clock(v.At), ends))
			}
		}
	}
	return bad
}

// backwards checks that no status falls behind an earlier one. A pod that has lost its sandbox is
// initialised again, and Pending meanwhile, as with a kubelet.
func (e *evidence) backwards(uid string, l life) []string {
	again := slices.ContainsFunc(e.strikes, func(s strike) bool { return s.kind == strikeSandbox && s.uid == uid })
	return slices.DeleteFunc(labtest.Backwards(l.versions), func(what string) bool {
		return again && strings.HasSuffix(what, "phase Pending after Running")
	})
}

// end checks that nothing of a pod, including its sandbox, ran when its API object went.
func (e *evidence) end(uid string, l life) []string {
	if l.gone.IsZero() || e.forced(uid) {
		return nil
	}
	var bad []string
	for n := range e.instances {
		i := &e.instances[n]
		if i.UID == uid && !i.Started.IsZero() && (i.Exited.IsZero() || i.Exited.After(l.gone)) {
			bad = append(bad, fmt.Sprintf("the API object had gone at %s: %s", clock(l.gone), say(i)))
		}
	}
	return bad
}

// names checks that no two pods of one name ran at once.
func (e *evidence) names() []string {
	var bad []string
	byName := map[string][]*labtest.Instance{}
	for n := range e.instances {
		i := &e.instances[n]
		byName[i.Pod] = append(byName[i.Pod], i)
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		list := byName[name]
		slices.SortFunc(list, func(a, b *labtest.Instance) int { return a.Created.Compare(b.Created) })
		ends := map[string]*labtest.Instance{} // the last to end of each UID
		for _, i := range list {
			for uid, o := range ends {
				if uid != i.UID && !e.forced(uid) && (o.Exited.IsZero() || o.Exited.After(i.Created)) {
					bad = append(bad, fmt.Sprintf("the name %s in two places at once: %s, and %s", name, say(o), say(i)))
				}
			}
			if o := ends[i.UID]; !i.Started.IsZero() && (o == nil || i.Exited.IsZero() || !o.Exited.IsZero() && i.Exited.After(o.Exited)) {
				ends[i.UID] = i
			}
		}
	}
	return bad
}

// truth compares a status with what containerd reported.
func (e *evidence) truth(p *v1.Pod) []string {
	var bad []string
	for c := range pod.Statuses(&p.Status) {
		for _, what := range e.containerTruth(p, *c) {
			bad = append(bad, fmt.Sprintf("%s of %s: %s", c.Name, p.Name, what))
		}
	}
	return bad
}

func (e *evidence) containerTruth(p *v1.Pod, c v1.ContainerStatus) []string {
	var bad []string
	wrong := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	i := e.last(string(p.UID), c.Name, time.Now())
	if i == nil {
		if c.State.Waiting == nil || c.ContainerID != "" {
			wrong("it was never created, and its status is %+v", c)
		}
		return bad
	}
	before := e.last(string(p.UID), c.Name, i.Created.Add(-time.Nanosecond))
	near := func(what string, told, was time.Time) {
		if d := told.Sub(was).Abs(); d > 2*time.Second {
			wrong("it %s at %s, and is told to have at %s", what, clock(was), clock(told))
		}
	}
	end := func(t *v1.ContainerStateTerminated, i *labtest.Instance) {
		if t == nil {
			wrong("its end is not told: %s", say(i))
			return
		}
		if !strings.HasSuffix(t.ContainerID, i.ID) || int(t.ExitCode) != i.Code && !e.cut(i) {
			wrong("the end told is of %s, with %d: %s", t.ContainerID, t.ExitCode, say(i))
		}
		if !i.Exited.IsZero() {
			near("ended", t.FinishedAt.Time, i.Exited)
		}
	}
	last := c.LastTerminationState.Terminated
	switch {
	case i.Runs() && c.State.Running == nil:
		wrong("it runs, and its status is %+v", c.State)
	case i.Runs():
		near("started", c.State.Running.StartedAt.Time, i.Started)
		if before != nil && before.Started.IsZero() && e.cut(before) {
			break // one that never began may have been replaced without a trace
		}
		if before != nil {
			end(last, before)
		} else if last != nil {
			wrong("an end is told of one that never ended: %+v", last)
		}
	case i.Exited.IsZero() && !e.cut(i):
		wrong("it was never started: %s", say(i))
	case c.State.Terminated != nil:
		end(c.State.Terminated, i)
	default:
		end(last, i)
	}
	if c.State.Waiting == nil && !strings.HasSuffix(c.ContainerID, i.ID) {
		wrong("its instance is told to be %s: %s", c.ContainerID, say(i))
	}
	if int(c.RestartCount) != i.Attempt {
		wrong("%d restarts are told: %s", c.RestartCount, say(i))
	}
	return bad
}
