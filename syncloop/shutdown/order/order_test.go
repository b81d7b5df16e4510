package order

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/pod"
)

func p(name string, priority *int32, grace *int64, annotations ...string) *v1.Pod {
	out := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Priority: priority, TerminationGracePeriodSeconds: grace}}
	for i := 0; i+1 < len(annotations); i += 2 {
		metav1.SetMetaDataAnnotation(&out.ObjectMeta, annotations[i], annotations[i+1])
	}
	return out
}

func s(n int64) time.Duration { return time.Duration(n) * time.Second }

// text writes a plan, one "priority/time: pod grace, …" line per group.
func text(groups []Group) string {
	var lines []string
	for _, g := range groups {
		var pods []string
		for _, e := range g.Pods {
			pods = append(pods, fmt.Sprint(e.Pod.Name, " ", e.Grace))
		}
		lines = append(lines, fmt.Sprintf("%d/%s: %s", g.Priority, g.Time, strings.Join(pods, ", ")))
	}
	return strings.Join(lines, "\n")
}

func TestPlan(t *testing.T) {
	of := func(n int32) *int32 { return &n }
	own := func(n int64) *int64 { return &n }
	kubernetes := []Period{{0, s(20)}, {2_000_000_000, s(10)}}
	odd := []Period{{100_000, s(10)}, {10_000, s(180)}, {1_000, s(120)}, {0, s(60)}} // not sorted
	for _, c := range []struct {
		name    string
		periods []Period
		pods    []*v1.Pod
		want    string
	}{
		{"no periods", nil, []*v1.Pod{p("a", nil, nil)}, ""},
		{"no pods", kubernetes, nil, ""},
		{"without a priority", kubernetes, []*v1.Pod{p("a", nil, nil)}, "0/20s: a 20s"},
		{"its own grace where it is less", kubernetes, []*v1.Pod{p("a", nil, own(30)), p("b", nil, own(7)), p("c", nil, own(20))}, "0/20s: a 20s, b 7s, c 20s"},
		{"never less than a second", []Period{{0, 0}}, []*v1.Pod{p("a", nil, own(30)), p("b", nil, own(0))}, "0/0s: a 1s, b 1s"},
		{"a grace that is nonsense", kubernetes, []*v1.Pod{p("a", nil, own(1<<62)), p("b", nil, own(-5))}, "0/20s: a 20s, b 1s"},
		{"critical ones last", kubernetes, []*v1.Pod{p("cluster", of(2_000_000_000), nil), p("node", of(2_000_001_000), nil), p("high", of(1_000_000_000), nil), p("a", of(0), nil)},
			"0/20s: high 20s, a 20s\n2000000000/10s: cluster 10s, node 10s"},
		{"static ones are critical", kubernetes, []*v1.Pod{
			p("static", nil, nil, pod.AnnotationSource, pod.SourceFile), p("url", of(5), nil, pod.AnnotationSource, pod.SourceHTTP)}, "2000000000/10s: static 10s, url 10s"},
		{"between two, the lower", odd, []*v1.Pod{p("a", of(999), nil), p("b", of(1_000), nil), p("c", of(9_999), nil), p("d", of(2_000_000_000), nil)},
			"0/1m0s: a 1m0s\n1000/2m0s: b 2m0s, c 2m0s\n100000/10s: d 10s"},
		{"below the lowest", []Period{{100, s(1)}, {200, s(2)}}, []*v1.Pod{p("a", of(-2_147_483_648), nil), p("b", nil, nil)}, "100/1s: a 1s, b 1s"},
	} {
		if got := text(Plan(c.periods, c.pods)); got != c.want {
			t.Errorf("%s:\n%s\nwant\n%s", c.name, got, c.want)
		}
	}
}

func TestSimple(t *testing.T) {
	for _, c := range []struct {
		all, critical time.Duration
		want          string
	}{
		{0, 0, "[]"}, {0, s(5), "[]"}, {s(5), s(10), "[]"}, {s(5), -s(1), "[]"},
		{s(30), s(10), "[{0 20s} {2000000000 10s}]"},
		{s(30), 0, "[{0 30s} {2000000000 0s}]"},
		{s(30), s(30), "[{0 0s} {2000000000 30s}]"},
		{1500 * time.Millisecond, 0, "[{0 1s} {2000000000 0s}]"},
	} {
		if got := fmt.Sprint(Simple(c.all, c.critical)); got != c.want {
			t.Errorf("%s with %s for critical ones: %s, want %s", c.all, c.critical, got, c.want)
		}
	}
}

// TestAnyPlan: every pod ends once; a pod that ends before another has no higher priority; no grace
// period exceeds its group's time; all periods fit into the total. A naive implementation of the
// kubelet's rule agrees on each pod's group.
func TestAnyPlan(t *testing.T) {
	priority := rapid.OneOf(rapid.Int32Range(-3, 12), rapid.SampledFrom([]int32{1_000_000_000, 2_000_000_000, 2_000_001_000, -1 << 31, 1<<31 - 1}))
	rapid.Check(t, func(t *rapid.T) {
		periods := rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) Period {
			return Period{priority.Draw(t, "priority"), s(rapid.Int64Range(0, 60).Draw(t, "time"))}
		}), 1, 6, func(p Period) int32 { return p.Priority }).Draw(t, "periods")
		var pods []*v1.Pod
		for i := range rapid.IntRange(0, 12).Draw(t, "pods") {
			next := p(fmt.Sprint("pod-", i), rapid.Ptr(priority, true).Draw(t, "of"), rapid.Ptr(rapid.Int64Range(-1, 90), true).Draw(t, "grace"))
			if rapid.Bool().Draw(t, "static") {
				metav1.SetMetaDataAnnotation(&next.ObjectMeta, pod.AnnotationSource, pod.SourceFile)
			}
			pods = append(pods, next)
		}
		given := slices.Clone(periods)
		groups := Plan(periods, pods)
		if !slices.Equal(given, periods) {
			t.Fatalf("the periods were changed to %v", periods)
		}
		seen := map[types.UID]int{}
		var sum time.Duration
		for i, g := range groups {
			sum += g.Time
			if len(g.Pods) == 0 {
				t.Errorf("a group of no one is waited for: %v", g)
			}
			if i > 0 && groups[i-1].Priority >= g.Priority {
				t.Errorf("the order is %s", text(groups))
			}
			for _, e := range g.Pods {
				seen[e.Pod.UID]++
				if e.Grace < time.Second || e.Grace > max(g.Time, time.Second) {
					t.Errorf("%s has %s of %s", e.Pod.Name, e.Grace, g.Time)
				}
				if want := dumb(periods, Priority(e.Pod)); want != g.Priority {
					t.Errorf("%s with the priority %d is in the group %d, want %d", e.Pod.Name, Priority(e.Pod), g.Priority, want)
				}
			}
		}
		if sum > Total(periods) {
			t.Errorf("%s is waited for, of %s", sum, Total(periods))
		}
		for _, q := range pods {
			if seen[q.UID] != 1 {
				t.Errorf("%s ends %d times", q.Name, seen[q.UID])
			}
		}
	})
}

// dumb returns the highest priority of a period that is not above the pod's, or else the lowest
// one.
func dumb(periods []Period, of int32) int32 {
	least, best, found := periods[0].Priority, int32(0), false
	for _, p := range periods {
		least = min(least, p.Priority)
		if p.Priority <= of && (!found || p.Priority > best) {
			best, found = p.Priority, true
		}
	}
	if !found {
		return least
	}
	return best
}
