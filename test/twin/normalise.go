package twin

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// replacements is the closed list of what is removed from texts, in addition to the recording's own
// names (its node, its namespace, its addresses, its pod's UID).
var replacements = []struct {
	what *regexp.Regexp
	with string
}{
	{regexp.MustCompile(`containerd://[0-9a-f]{64}`), "CONTAINER"},
	{regexp.MustCompile(`sha256:[0-9a-f]{64}`), "DIGEST"},
	{regexp.MustCompile(`\b[0-9a-f]{64}\b`), "ID"},
	{regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b`), "UID"},
	{regexp.MustCompile(`\b[0-9a-f]{32}\b`), "UID"}, // of a static pod
	{regexp.MustCompile(`kube-api-access-[a-z0-9]{5}\b`), "kube-api-access"},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	// The duration of a pull: "in 12ms (34ms including waiting)".
	{regexp.MustCompile(`in (\d+h)?(\d+m)?[0-9.]+(ms|µs|s) \(([0-9.hmsµ]+) including waiting\)`), "in SPAN (SPAN including waiting)"},
	// The use of the node by other pods, and its size.
	{regexp.MustCompile(`\bused: \d+, capacity: \d+`), "used: N, capacity: N"},
	// The local end of a connection.
	{regexp.MustCompile(`\bHOSTIP:\d+->`), "HOSTIP:PORT->"},
	{regexp.MustCompile(`\bGATEWAY:\d+->`), "GATEWAY:PORT->"},
}

// names returns the names that belong to one recording alone, and their replacements.
func (r Recording) names() []string {
	var pairs []string
	add := func(name, with string) {
		if name != "" && !slices.Contains(pairs, name) {
			pairs = append(pairs, name, with)
		}
	}
	for _, e := range r.Entries {
		if e.Pod == nil {
			continue
		}
		add(string(e.Pod.UID), "UID")
		for _, ip := range e.Pod.Status.PodIPs {
			if ip.IP == r.HostIP {
				continue
			}
			add(ip.IP, "PODIP")
			// The bridge of the pod network has its first address.
			add(ip.IP[:strings.LastIndexByte(ip.IP, '.')+1]+"1", "GATEWAY")
		}
	}
	add(r.HostIP, "HOSTIP")
	add(r.Namespace, "NAMESPACE")
	add(r.Node, "NODE")
	// Longer names first: one may be the prefix of another.
	type pair struct{ name, with string }
	var sorted []pair
	for i := 0; i < len(pairs); i += 2 {
		sorted = append(sorted, pair{pairs[i], pairs[i+1]})
	}
	sort.SliceStable(sorted, func(i, j int) bool { return len(sorted[i].name) > len(sorted[j].name) })
	pairs = pairs[:0]
	for _, p := range sorted {
		pairs = append(pairs, p.name, p.with)
	}
	return pairs
}

func newReplacer(r Recording) *strings.Replacer { return strings.NewReplacer(r.names()...) }

// normaliser removes the names of one recording.
type normaliser struct{ own *strings.Replacer }

func (n normaliser) text(s string) string {
	s = n.own.Replace(s)
	for _, r := range replacements {
		s = r.what.ReplaceAllString(s, r.with)
	}
	return s
}

// Normalise makes the timeline of a recording.
func Normalise(r Recording) Timeline {
	n := normaliser{own: newReplacer(r)}
	t := Timeline{Scenario: r.Scenario, Tracks: map[string][]Value{}, Events: map[string][]EventLine{}, Lives: map[string][]Life{}}
	since := map[string]time.Time{}
	put := func(track, kind, text string, at time.Time) {
		values := t.Tracks[track]
		if len(values) > 0 && values[len(values)-1].Text == text {
			return
		}
		if len(values) > 0 {
			values[len(values)-1].Lasted = at.Sub(since[track])
		}
		t.Tracks[track], since[track] = append(values, Value{Text: text, Kind: kind, Lasted: forever}), at
	}
	var deleted, gone time.Time
	ends := map[string]map[string]v1.ContainerStateTerminated{} // container -> ID
	starts := map[string]map[string]time.Time{}
	for _, e := range r.Entries {
		if e.Pod == nil {
			continue
		}
		// A mirror pod that is recreated is another object, but the same pod.
		if e.Deleted {
			gone = e.At
		}
		if e.Pod.DeletionTimestamp != nil && deleted.IsZero() {
			deleted = e.At
		}
		if e.Pod.DeletionTimestamp == nil {
			t.Settled = n.fields(e.Pod)
		}
		t.Last = n.fields(e.Pod)
		n.tracks(e.Pod, func(track, kind, text string) { put(track, kind, text, e.At) })
		eachContainer(e.Pod, func(s v1.ContainerStatus) {
			if starts[s.Name] == nil {
				starts[s.Name], ends[s.Name] = map[string]time.Time{}, map[string]v1.ContainerStateTerminated{}
			}
			if s.State.Running != nil {
				starts[s.Name][s.ContainerID] = s.State.Running.StartedAt.Time
			}
			for _, ended := range []*v1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
				if ended != nil && !ended.FinishedAt.IsZero() { // else the life is unknown
					ends[s.Name][ended.ContainerID] = *ended
				}
			}
		})
	}
	if !deleted.IsZero() && !gone.IsZero() {
		t.Ending = gone.Sub(deleted).Round(time.Second)
	}
	for name, byID := range ends {
		t.lives(name, byID, starts[name], n)
	}
	sort.SliceStable(t.Moments, func(i, j int) bool {
		a, b := t.Moments[i], t.Moments[j]
		if !a.At.Equal(b.At) {
			return a.At.Before(b.At)
		}
		return a.What < b.What
	})
	t.events(r, n)
	return t
}

// forever: no other value followed.
const forever = time.Duration(1<<63 - 1)

func eachContainer(p *v1.Pod, f func(v1.ContainerStatus)) {
	for s := range pod.AllStatuses(&p.Status) {
		f(*s)
	}
}

// tracks puts the values of one status.
func (n normaliser) tracks(p *v1.Pod, put func(track, kind, text string)) {
	st := p.Status
	put("phase", "", string(st.Phase))
	put("reason", "", strings.TrimSpace(st.Reason+" "+n.text(st.Message)))
	put("addresses", "", fmt.Sprintf("hostIP %t podIP %d", st.HostIP != "", len(st.PodIPs)))
	put("started", "", fmt.Sprint(st.StartTime != nil))
	for _, c := range st.Conditions {
		put("condition "+string(c.Type), string(c.Status), fmt.Sprintf("%s %s %s", c.Status, c.Reason, n.text(c.Message)))
	}
	eachContainer(p, func(s v1.ContainerStatus) {
		state, kind := n.state(s.State)
		text := fmt.Sprintf("#%d %s", s.RestartCount, state)
		if last, _ := n.state(s.LastTerminationState); last != "" {
			text += ", before: " + last
		}
		put("container "+s.Name, kind, text)
		started := "unknown"
		if s.Started != nil {
			started = fmt.Sprint(*s.Started)
		}
		put("flags "+s.Name, fmt.Sprint(s.RestartCount), fmt.Sprintf("#%d ready %t started %s", s.RestartCount, s.Ready, started))
	})
}

// state describes a state and returns its kind: the reason of a waiting state, or the name of the
// state.
func (n normaliser) state(s v1.ContainerState) (text, kind string) {
	switch {
	case s.Waiting != nil:
		return strings.TrimSpace("waiting " + s.Waiting.Reason + " " + n.text(s.Waiting.Message)), s.Waiting.Reason
	case s.Running != nil:
		if s.Running.StartedAt.IsZero() {
			return "running without startedAt", "running"
		}
		return "running", "running"
	case s.Terminated != nil:
		t := s.Terminated
		text = fmt.Sprintf("terminated %s exit %d signal %d", t.Reason, t.ExitCode, t.Signal)
		if t.StartedAt.IsZero() {
			text += " without startedAt"
		}
		if t.FinishedAt.IsZero() {
			text += " without finishedAt"
		}
		if t.ContainerID == "" {
			text += " without a containerID"
		}
		if t.Message != "" {
			text += " " + n.text(t.Message)
		}
		return text, "terminated"
	}
	return "", ""
}

// fields returns the fields of the status by their paths; list elements have the names of their
// items.
func (n normaliser) fields(p *v1.Pod) map[string]string {
	fields := map[string]string{}
	data, err := json.Marshal(p.Status)
	var status map[string]any
	if err == nil {
		err = json.Unmarshal(data, &status)
	}
	if err != nil {
		fields["error"] = err.Error() // never: it came as JSON
	}
	n.flatten(fields, "", status)
	if s := p.DeletionGracePeriodSeconds; s != nil {
		fields["deletionGracePeriodSeconds"] = fmt.Sprint(*s)
	}
	for _, key := range []string{"kubernetes.io/config.source", "kubernetes.io/config.mirror"} {
		if _, ok := p.Annotations[key]; ok {
			fields["annotations."+key] = "there"
		}
	}
	return fields
}

func (n normaliser) flatten(into map[string]string, path string, value any) {
	switch v := value.(type) {
	case map[string]any:
		for key, child := range v {
			n.flatten(into, strings.TrimPrefix(path+"."+key, "."), child)
		}
	case []any:
		for i, child := range v {
			name := fmt.Sprint(i)
			if m, ok := child.(map[string]any); ok {
				for _, key := range []string{"type", "name"} {
					if s, ok := m[key].(string); ok {
						name = s
						break
					}
				}
			}
			n.flatten(into, path+"["+n.text(name)+"]", child)
		}
	case nil:
	default:
		into[path] = n.text(fmt.Sprint(v))
	}
}

// lives adds the lives of one container, by its IDs.
func (t *Timeline) lives(name string, ends map[string]v1.ContainerStateTerminated, starts map[string]time.Time, n normaliser) {
	var all []v1.ContainerStateTerminated
	for id, end := range ends {
		if end.StartedAt.Unix() > 0 {
			starts[id] = end.StartedAt.Time
		}
		all = append(all, end)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].FinishedAt.Before(&all[j].FinishedAt) })
	var before time.Time
	for i, end := range all {
		state, _ := n.state(v1.ContainerState{Terminated: &end})
		life := Life{End: state, Ran: end.FinishedAt.Sub(end.StartedAt.Time)}
		if end.StartedAt.Unix() <= 0 {
			life.Ran = 0 // it never started
		} else if i > 0 && before.Unix() > 0 {
			life.Waited = end.StartedAt.Sub(before)
		}
		before = end.FinishedAt.Time
		t.Lives[name] = append(t.Lives[name], life)
		t.Moments = append(t.Moments, Moment{fmt.Sprintf("end %d of %s", i, name), end.FinishedAt.Time})
	}
	var times []time.Time
	for _, at := range starts {
		times = append(times, at)
	}
	slices.SortFunc(times, time.Time.Compare)
	for i, at := range times {
		t.Moments = append(t.Moments, Moment{fmt.Sprintf("start %d of %s", i, name), at})
	}
}

// events adds the events in the order of their first occurrence, each in its last state.
func (t *Timeline) events(r Recording, n normaliser) {
	index := map[types.UID]int{}
	for _, e := range r.Entries {
		if e.Event == nil {
			continue
		}
		ev := e.Event
		path := ev.InvolvedObject.FieldPath
		line := EventLine{Cause: ev.Reason, Count: max(ev.Count, 1),
			Text: fmt.Sprintf("%s %s (%s): %s", ev.Type, ev.Reason, n.text(ev.Source.Component+" "+ev.ReportingController+" of "+ev.Source.Host+" "+ev.ReportingInstance), n.text(ev.Message))}
		if i, ok := index[ev.UID]; ok {
			t.Events[path][i] = line
			continue
		}
		index[ev.UID] = len(t.Events[path])
		t.Events[path] = append(t.Events[path], line)
	}
}
