// Package oracle has the rules that several system tests check a node by. Their evidence does not
// come from Bowline: instances of containers are what the runtime or the containers themselves
// recorded, versions of pods are what the API server sent. A rule returns its violations.
package oracle

import (
	"fmt"
	"slices"
	"time"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// Describe returns an instance in one line.
func Describe(i *labtest.Instance) string {
	what := i.Container
	if i.Sandbox {
		what = "the sandbox"
	}
	s := fmt.Sprintf("%s of %s (%s, %.12s, attempt %d, created %s", what, i.Pod, i.UID, i.ID, i.Attempt, Clock(i.Created))
	if !i.Started.IsZero() {
		s += ", started " + Clock(i.Started)
	}
	if !i.Exited.IsZero() {
		s += fmt.Sprintf(", ended %s with %d", Clock(i.Exited), i.Code)
	}
	return s + ")"
}

// Clock is a time of day, as the logs have it.
func Clock(t time.Time) string { return t.Local().Format("15:04:05.000") }

// OneStart: a container of a pod starts once, or up to again more times.
func OneStart(instances []labtest.Instance, again int) []string {
	var bad []string
	starts := map[[2]string]int{}
	for n := range instances {
		i := &instances[n]
		if i.Sandbox || i.Started.IsZero() {
			continue
		}
		key := [2]string{i.UID, i.Container}
		if starts[key]++; starts[key] > 1+again {
			bad = append(bad, fmt.Sprintf("%s was started %d times", Describe(i), starts[key]))
		}
	}
	return bad
}

// OneAtATime: an instance is created after the end of each earlier one that excludes it. Later
// instances add violations at the end.
func OneAtATime(instances []labtest.Instance, excludes func(a, b *labtest.Instance) bool) []string {
	var bad []string
	ordered := slices.Clone(instances)
	slices.SortStableFunc(ordered, func(a, b labtest.Instance) int { return a.Created.Compare(b.Created) })
	for n := range ordered {
		b := &ordered[n]
		for m := range ordered[:n] {
			if a := &ordered[m]; runsAfter(a, b.Created) && excludes(a, b) {
				bad = append(bad, fmt.Sprintf("%s had not ended before %s", Describe(a), Describe(b)))
			}
		}
	}
	return bad
}

// NothingRuns: when the API object of a pod goes, its containers and its sandbox have ended.
func NothingRuns(instances []labtest.Instance, uid string, gone time.Time) []string {
	var bad []string
	for n := range instances {
		if i := &instances[n]; i.UID == uid && runsAfter(i, gone) {
			bad = append(bad, fmt.Sprintf("the API object was gone at %s, before the end of %s", Clock(gone), Describe(i)))
		}
	}
	return bad
}

// runsAfter reports whether an instance was started and had not ended at a time.
func runsAfter(i *labtest.Instance, at time.Time) bool {
	return !i.Started.IsZero() && (i.Exited.IsZero() || i.Exited.After(at))
}
