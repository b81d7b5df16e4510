package storm

import (
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
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

// trace is everything known of a storm from outside Bowline.
type trace struct {
	instances []labtest.Instance // of the storm's namespace alone
	lives     map[string]life    // by UID
	strikes   []strike
	kills     []time.Time // of our process
}

// lag is how late an event of the API server may reach us under load, compared with its effect in
// containerd.
const lag = 3 * time.Second

// creation is the longest time from containerd's event of a container's creation until the worker would
// start the container, under load.
const creation = 10 * time.Second

// inFlight is the longest time from the kill of our process until containerd reports a container as
// created that the process had asked for, under load.
const inFlight = 10 * time.Second

// check returns the violations of the package comment's rules.
func (t *trace) check() []string {
	var bad []string
	type key struct{ uid, container string }
	chains := map[key][]labtest.Instance{}
	for _, i := range t.instances {
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
		if what := t.unexplained(&i); what != "" {
			bad = append(bad, what)
		}
	}
	for k, chain := range chains {
		slices.SortFunc(chain, func(a, b labtest.Instance) int { return a.Created.Compare(b.Created) })
		for n := 1; n < len(chain); n++ {
			bad = append(bad, t.next(&chain[n-1], &chain[n], chains[key{k.uid, ""}])...)
		}
	}
	for uid, l := range t.lives {
		bad = append(bad, t.unready(uid, l)...)
		bad = append(bad, t.restarts(uid, l)...)
		if !l.gone.IsZero() && !t.forced(uid) {
			bad = append(bad, oracle.NothingRuns(t.instances, uid, l.gone)...)
		}
		bad = append(bad, oracle.NoStatusBackwards(l.pods(), t.struck(strikeSandbox, uid))...)
	}
	bad = append(bad, oracle.OneAtATime(t.instances, func(a, b *labtest.Instance) bool {
		if a.UID == b.UID {
			return a.Sandbox == b.Sandbox && a.Container == b.Container
		}
		return a.Pod == b.Pod && !t.forced(a.UID)
	})...)
	slices.Sort(bad)
	return bad
}

// cut reports whether its start was in flight when our process was killed, so that the runtime may
// have given it up.
func (t *trace) cut(i *labtest.Instance) bool { return t.cutBy(i, time.Now()) }

// cutBy is cut, but ignores kills after a time.
func (t *trace) cutBy(i *labtest.Instance, by time.Time) bool {
	for _, k := range t.kills {
		if k.After(by) {
			continue
		}
		late := time.Second
		if i.Started.IsZero() {
			late = inFlight
		}
		if i.Created.After(k.Add(late)) || k.Sub(i.Created) > 2*time.Minute {
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

func (l life) pods() (list []*v1.Pod) {
	for _, v := range l.versions {
		list = append(list, v.Pod)
	}
	return list
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
func (t *trace) deleted(uid string, by time.Time) bool {
	l := t.lives[uid]
	if asked := l.asked(); !asked.IsZero() && !asked.After(by.Add(time.Second)) {
		return true
	}
	return !l.gone.IsZero() && l.gone.Before(by.Add(lag)) || t.forced(uid)
}

func (t *trace) forced(uid string) bool { return t.struck(strikeForce, uid) }

func (t *trace) struck(kind, uid string) bool {
	return slices.ContainsFunc(t.strikes, func(s strike) bool { return s.kind == kind && s.uid == uid })
}

// unexplained describes an instance that ended for no known reason, or returns "".
func (t *trace) unexplained(i *labtest.Instance) string {
	if i.Exited.IsZero() || i.Started.IsZero() || t.deleted(i.UID, i.Exited) || t.cut(i) {
		return ""
	}
	p := t.lives[i.UID].pod()
	if p == nil {
		return oracle.Describe(i) + " is of a pod that the API server never had"
	}
	for _, s := range t.strikes {
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
		if t.over(p, i.Exited) {
			return ""
		}
	}
	return oracle.Describe(i) + " ended, and no one knows why: " + labtest.Describe(p)
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
func (t *trace) last(uid, container string, by time.Time) *labtest.Instance {
	var newest *labtest.Instance
	for n := range t.instances {
		i := &t.instances[n]
		if i.UID == uid && !i.Sandbox && i.Container == container && !i.Created.After(by) && (newest == nil || i.Created.After(newest.Created)) {
			newest = i
		}
	}
	return newest
}

// over reports whether by a time all regular containers of the pod had ended for good. A start that
// the runtime gave up when our process was killed is such an end if the pod may not restart.
func (t *trace) over(p *v1.Pod, by time.Time) bool {
	if p.Spec.RestartPolicy == v1.RestartPolicyAlways {
		return false
	}
	for _, c := range p.Spec.Containers {
		i := t.last(string(p.UID), c.Name, by)
		if i != nil && i.Started.IsZero() && t.cutBy(i, by) && p.Spec.RestartPolicy == v1.RestartPolicyNever {
			continue
		}
		if i == nil || i.Exited.IsZero() || i.Exited.After(by) || p.Spec.RestartPolicy == v1.RestartPolicyOnFailure && i.Code != 0 {
			return false
		}
	}
	return true
}

// cancelled reports whether the start of a sidecar was cancelled between its creation and its start,
// because its pod was over, and not because our process was killed.
func (t *trace) cancelled(p *v1.Pod, i *labtest.Instance) bool {
	return i.Started.IsZero() && !t.cut(i) && kindOf(p, i) == sidecar && t.over(p, i.Created.Add(creation))
}

// next checks two instances of one container, the second the first's successor. sandboxes are the
// pod's.
func (t *trace) next(a, b *labtest.Instance, sandboxes []labtest.Instance) []string {
	var bad []string
	pair := func(what string) {
		bad = append(bad, oracle.Describe(a)+" was followed by "+oracle.Describe(b)+": "+what)
	}
	started := !a.Started.IsZero()
	if !started && !t.cut(a) {
		pair("the first was never started")
	}
	if !a.Sandbox && (b.Attempt < a.Attempt || started && b.Attempt == a.Attempt) {
		pair("that is no higher attempt")
	}
	p := t.lives[a.UID].pod()
	if p == nil || !started || t.cut(a) {
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

// unready checks where readiness was lost.
func (t *trace) unready(uid string, l life) []string {
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
		if was && !is && !t.ended(uid, "", since.Add(-lag), b.At) {
			bad = append(bad, fmt.Sprintf("%s (%s) was Ready until %s, when no container of it had ended: %s", b.Name, uid, oracle.Clock(b.At), labtest.Describe(b.Pod)))
		}
		for c := range pod.Statuses(&a.Status) {
			now := labtest.Container(b.Pod, c.Name)
			if now == nil || !c.Ready || now.Ready || now.ContainerID != c.ContainerID {
				continue
			}
			if _, id, _ := strings.Cut(c.ContainerID, "://"); !t.ended(uid, id, time.Time{}, b.At) {
				bad = append(bad, fmt.Sprintf("%s of %s (%s) was ready until %s, and ran on", c.Name, b.Name, uid, oracle.Clock(b.At)))
			}
		}
	}
	return bad
}

// ended reports whether an instance of the pod, with this ID if given, ended between two times.
func (t *trace) ended(uid, id string, after, by time.Time) bool {
	return slices.ContainsFunc(t.instances, func(i labtest.Instance) bool {
		return i.UID == uid && (id == "" || i.ID == id) && !i.Exited.IsZero() && i.Exited.After(after) && !i.Exited.After(by)
	})
}

// restarts checks that each restart that a status counts is the end of an instance.
func (t *trace) restarts(uid string, l life) []string {
	var bad []string
	most := map[string]int32{}
	for _, v := range l.versions {
		for c := range pod.Statuses(&v.Status) {
			if c.RestartCount <= most[c.Name] {
				continue
			}
			most[c.Name] = c.RestartCount
			ends := int32(0)
			for n := range t.instances {
				i := &t.instances[n]
				if i.UID == uid && !i.Sandbox && i.Container == c.Name && (!i.Exited.IsZero() && !i.Exited.After(v.At) || i.Started.IsZero() && t.cut(i)) {
					ends++
				}
			}
			if ends < c.RestartCount {
				bad = append(bad, fmt.Sprintf("%s of %s (%s) has %d restarts at %s, and ended %d times", c.Name, v.Name, uid, c.RestartCount, oracle.Clock(v.At), ends))
			}
		}
	}
	return bad
}

// truth compares a status with what containerd reported.
func (t *trace) truth(p *v1.Pod) []string {
	var bad []string
	for c := range pod.Statuses(&p.Status) {
		for _, what := range t.containerTruth(p, *c) {
			bad = append(bad, fmt.Sprintf("%s of %s: %s", c.Name, p.Name, what))
		}
	}
	return bad
}

func (t *trace) containerTruth(p *v1.Pod, c v1.ContainerStatus) []string {
	var bad []string
	wrong := func(format string, args ...any) { bad = append(bad, fmt.Sprintf(format, args...)) }
	i := t.last(string(p.UID), c.Name, time.Now())
	if i == nil {
		if c.State.Waiting == nil || c.ContainerID != "" {
			wrong("it was never created, and its status is %+v", c)
		}
		return bad
	}
	before := t.last(string(p.UID), c.Name, i.Created.Add(-time.Nanosecond))
	near := func(what string, reported, was time.Time) {
		if d := reported.Sub(was).Abs(); d > 2*time.Second {
			wrong("it %s at %s, and is reported to have at %s", what, oracle.Clock(was), oracle.Clock(reported))
		}
	}
	end := func(end *v1.ContainerStateTerminated, i *labtest.Instance) {
		if end == nil {
			wrong("its end is not reported: %s", oracle.Describe(i))
			return
		}
		if !strings.HasSuffix(end.ContainerID, i.ID) || int(end.ExitCode) != i.Code && !t.cut(i) {
			wrong("the reported end is of %s, with %d: %s", end.ContainerID, end.ExitCode, oracle.Describe(i))
		}
		if !i.Exited.IsZero() {
			near("ended", end.FinishedAt.Time, i.Exited)
		}
	}
	last := c.LastTerminationState.Terminated
	switch {
	case i.Runs() && c.State.Running == nil:
		wrong("it runs, and its status is %+v", c.State)
	case i.Runs():
		near("started", c.State.Running.StartedAt.Time, i.Started)
		if before != nil && before.Started.IsZero() && t.cut(before) {
			break // one that never began may have been replaced without a trace
		}
		if before != nil {
			end(last, before)
		} else if last != nil {
			wrong("an end is reported of one that never ended: %+v", last)
		}
	case t.cancelled(p, i):
		if now := c.State.Terminated; now == nil || !strings.HasSuffix(now.ContainerID, i.ID) || now.Reason != "ContainerStatusUnknown" {
			wrong("its start was cancelled, and its status is %+v: %s", c.State, oracle.Describe(i))
		}
		if before != nil && !before.Started.IsZero() {
			end(last, before)
		}
	case i.Exited.IsZero() && !t.cut(i):
		wrong("it was never started, and its status is %+v: %s", c.State, oracle.Describe(i))
	case c.State.Terminated != nil:
		end(c.State.Terminated, i)
	default:
		end(last, i)
	}
	if c.State.Waiting == nil && !strings.HasSuffix(c.ContainerID, i.ID) {
		wrong("its instance is reported to be %s: %s", c.ContainerID, oracle.Describe(i))
	}
	if int(c.RestartCount) != i.Attempt {
		wrong("%d restarts are reported: %s", c.RestartCount, oracle.Describe(i))
	}
	return bad
}
