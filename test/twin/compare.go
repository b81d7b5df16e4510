package twin

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

const (
	// passingTime: a value that lasted less may have been missed by a reporter.
	passingTime = 2 * time.Second
	// nearTime and nearPart: two durations agree if they differ by no more than the greater of
	// these. The two nodes share a machine.
	nearTime = 3 * time.Second
	nearPart = 0.3
)

// clocked are the reasons of events that recur on a timer, so that their number depends on when the
// scenario ended.
var clocked = []string{"BackOff", "Unhealthy", "Failed", "FailedMount", "Pulling", "ProbeWarning", "FailedCreatePodSandBox", "ErrImageNeverPull", "InspectFailed"}

// Compare compares two timelines of one scenario. No result means that they agree.
func Compare(a, b Timeline) []Difference {
	c := &comparison{scenario: a.Scenario}
	for _, track := range keys(a.Tracks, b.Tracks) {
		c.track(track, a.Tracks[track], b.Tracks[track])
	}
	for _, part := range keys(a.Events, b.Events) {
		c.events(part, a.Events[part], b.Events[part])
	}
	for _, name := range keys(a.Lives, b.Lives) {
		c.lives(name, a.Lives[name], b.Lives[name])
	}
	c.fields("before the deletion", a.Settled, b.Settled)
	c.fields("at the end", a.Last, b.Last)
	c.order(a.Moments, b.Moments)
	if !near(a.Ending, b.Ending) {
		c.differ("from deletion to the end", a.Ending.String(), b.Ending.String())
	}
	return c.found
}

type comparison struct {
	scenario string
	found    []Difference
}

func (c *comparison) differ(where, a, b string) {
	c.found = append(c.found, Difference{Scenario: c.scenario, Where: where, Kubelet: a, Other: b})
}

func keys[V any](a, b map[string]V) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}

func near(a, b time.Duration) bool {
	gap := (a - b).Abs()
	return gap <= nearTime || float64(gap) <= nearPart*float64(max(a, b))
}

// track compares two sequences of values.
func (c *comparison) track(name string, a, b []Value) {
	for _, g := range align(a, b, func(v Value) string { return v.Text }) {
		switch {
		case len(g.a) > 0 && len(g.b) > 0:
		case allPassing(name, a, g.a) && allPassing(name, b, g.b):
			continue
		}
		c.differ(name, texts(a, g.a), texts(b, g.b))
	}
}

func texts(values []Value, which []int) string {
	var words []string
	for _, i := range which {
		words = append(words, strings.TrimSpace(values[i].Text))
	}
	return strings.Join(words, " → ")
}

func allPassing(name string, values []Value, which []int) bool {
	for _, i := range which {
		if !passing(name, values, i) {
			return false
		}
	}
	return true
}

// passing reports whether a value adds no information to its neighbours. The list is closed:
//
//   - of a container: that it is being created, if it was created then; that it has
//     ended, if the next value says how it ended; that it ran, if the next value says how that
//     life ended;
//   - of a container's flags: those of a life that is followed by another life, and that
//     it has started, before it is ready;
//   - of a condition: another reason for the same status as before or after;
//   - of the phase: Running, between Pending and the end;
//   - of the other fields: none is ever taken back, so all but the first and the last.
func passing(track string, values []Value, i int) bool {
	v := values[i]
	if v.Lasted >= passingTime || i == len(values)-1 {
		return false
	}
	next := values[i+1]
	kind, _, _ := strings.Cut(track, " ")
	switch kind {
	case "container":
		number, state, _ := strings.Cut(v.Text, " ")
		switch v.Kind {
		case "ContainerCreating", "PodInitializing":
			return strings.HasPrefix(next.Text, number+" ")
		case "terminated":
			state, _, _ = strings.Cut(state, ", before: ")
			return strings.HasSuffix(next.Text, ", before: "+state)
		case "running":
			return next.Kind == "terminated" && strings.HasPrefix(next.Text, number+" ")
		}
		return false
	case "flags":
		return next.Kind != v.Kind || strings.HasSuffix(v.Text, "ready false started true") && strings.HasSuffix(next.Text, "ready true started true")
	case "condition":
		return next.Kind == v.Kind || i > 0 && values[i-1].Kind == v.Kind
	case "phase":
		return i > 0 && values[i-1].Text == "Pending" && v.Text == "Running" && (next.Text == "Succeeded" || next.Text == "Failed")
	case "addresses", "started":
		return i > 0
	}
	return false
}

// events compares the events of one part of the pod.
func (c *comparison) events(part string, a, b []EventLine) {
	where := "events of " + part
	if part == "" {
		where = "events of the pod"
	}
	line := func(lines []EventLine, which []int) string {
		var words []string
		for _, i := range which {
			words = append(words, lines[i].Text)
		}
		return strings.Join(words, " → ")
	}
	matched := func(i, j int) {
		x, y := a[i], b[j]
		if x.Count == y.Count || slices.Contains(clocked, x.Cause) && nearCount(x.Count, y.Count) {
			return
		}
		c.differ(where, fmt.Sprintf("%d times %s", x.Count, x.Text), fmt.Sprintf("%d times %s", y.Count, y.Text))
	}
	for _, g := range alignEach(a, b, func(e EventLine) string { return e.Text }, matched) {
		c.differ(where, line(a, g.a), line(b, g.b))
	}
}

// nearCount reports whether two counts differ by at most one, or by at most a third.
func nearCount(a, b int32) bool {
	gap := max(a-b, b-a)
	return gap <= 1 || 3*gap <= max(a, b)
}

func (c *comparison) lives(name string, a, b []Life) {
	where := "lives of " + name
	if len(a) != len(b) {
		c.differ(where, fmt.Sprint(len(a)), fmt.Sprint(len(b)))
	}
	for i := range min(len(a), len(b)) {
		if a[i].End != b[i].End {
			c.differ(where, a[i].End, b[i].End)
		}
		if !near(a[i].Ran, b[i].Ran) {
			c.differ(where, fmt.Sprintf("#%d ran %s", i, a[i].Ran), fmt.Sprintf("#%d ran %s", i, b[i].Ran))
		}
		if !near(a[i].Waited, b[i].Waited) {
			c.differ(where, fmt.Sprintf("#%d waited %s", i, a[i].Waited), fmt.Sprintf("#%d waited %s", i, b[i].Waited))
		}
	}
}

// fields compares whole statuses.
func (c *comparison) fields(when string, a, b map[string]string) {
	for _, field := range keys(a, b) {
		x, inA := a[field]
		y, inB := b[field]
		switch {
		case inA && inB && x == y:
			continue
		case !inA:
			x = "(absent)"
		case !inB:
			y = "(absent)"
		}
		c.differ("status "+when+": "+field, x, y)
	}
}

// order checks that no two moments that are a second apart on one side are in the reverse order on
// the other.
func (c *comparison) order(a, b []Moment) {
	at := map[string]time.Time{}
	for _, m := range b {
		at[m.What] = m.At
	}
	for i, x := range a {
		for _, y := range a[i+1:] {
			bx, okX := at[x.What]
			by, okY := at[y.What]
			if okX && okY && y.At.Sub(x.At) > time.Second && bx.Sub(by) > 0 || okX && okY && y.At.After(x.At) && bx.Sub(by) > time.Second {
				c.differ("order", x.What+", then "+y.What, y.What+", then "+x.What)
			}
		}
	}
}

// gap is a part between the common elements of two sequences: indices into each.
type gap struct{ a, b []int }

func align[T any](a, b []T, key func(T) string) []gap {
	return alignEach(a, b, key, func(int, int) {})
}

// alignEach finds the longest common subsequence of a and b, calls matched for its pairs, and
// returns the gaps between them.
func alignEach[T any](a, b []T, key func(T) string, matched func(i, j int)) []gap {
	length := make([][]int, len(a)+1)
	for i := range length {
		length[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if key(a[i]) == key(b[j]) {
				length[i][j] = length[i+1][j+1] + 1
			} else {
				length[i][j] = max(length[i+1][j], length[i][j+1])
			}
		}
	}
	var gaps []gap
	var g gap
	flush := func() {
		if len(g.a)+len(g.b) > 0 {
			gaps = append(gaps, g)
		}
		g = gap{}
	}
	i, j := 0, 0
	for i < len(a) || j < len(b) {
		switch {
		case i < len(a) && j < len(b) && key(a[i]) == key(b[j]):
			flush()
			matched(i, j)
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && length[i+1][j] >= length[i][j+1]:
			g.a = append(g.a, i)
			i++
		default:
			g.b = append(g.b, j)
			j++
		}
	}
	flush()
	return gaps
}
