// Package choose decides what a machine is short of, and which pod gives way. It is
// pure: what it decides depends on what was measured, what it said before, and the time.
package choose

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/bowline-k8s/bowline/pod"
)

// Observation of one signal.
type Observation struct{ Available, Capacity int64 }

// Observations by signal; what was not measured is not in it, and met by nothing.
type Observations map[pod.Signal]Observation

// State is what is remembered from one look to the next. The zero State is that of a
// node which has never looked.
type State struct {
	// since is when each threshold was first seen to be met, by its place in the list;
	// met are those whose grace was over.
	since map[int]time.Time
	met   map[int]bool
	// seen is when each condition was last seen.
	seen map[v1.NodeConditionType]time.Time
}

// Result of one look.
type Result struct {
	// Conditions that are True now, sorted.
	Conditions []v1.NodeConditionType
	// Due are the thresholds that pods have to give way for, the first one first.
	Due []pod.Threshold
}

// Step takes one look.
func Step(old State, thresholds []pod.Threshold, seen Observations, now time.Time, transition time.Duration) (State, Result) {
	next := State{since: map[int]time.Time{}, met: map[int]bool{}, seen: map[v1.NodeConditionType]time.Time{}}
	for c, at := range old.seen {
		next.seen[c] = at
	}
	var r Result
	for i, t := range thresholds {
		// One that pods have given way for counts until its minimum reclaim is there too.
		if !Met(t, seen, false) && !(old.met[i] && Met(t, seen, true)) {
			continue
		}
		next.since[i] = now
		if at, ok := old.since[i]; ok {
			next.since[i] = at
		}
		next.seen[conditionOf(t.Signal)] = now
		if now.Sub(next.since[i]) >= t.Grace {
			next.met[i] = true
			r.Due = append(r.Due, t)
		}
	}
	for c, at := range next.seen {
		// A condition that is seen now is one whatever the period.
		if at.Equal(now) || now.Sub(at) < transition {
			r.Conditions = append(r.Conditions, c)
		}
	}
	slices.Sort(r.Conditions)
	slices.SortStableFunc(r.Due, func(a, b pod.Threshold) int { return rankOf(a.Signal) - rankOf(b.Signal) })
	return next, r
}

// rankOf: memory comes first, as a machine without any does nothing else either.
func rankOf(s pod.Signal) int {
	if ResourceOf(s) == v1.ResourceMemory {
		return 0
	}
	return 1
}

// Met reports whether less than the threshold is left, or with reclaim less than that
// and its minimum reclaim.
func Met(t pod.Threshold, seen Observations, reclaim bool) bool {
	o, ok := seen[t.Signal]
	if !ok {
		return false
	}
	wants := t.Amount.Of(o.Capacity)
	if reclaim && t.MinReclaim != nil {
		wants += t.MinReclaim.Of(o.Capacity)
	}
	return o.Available < wants
}

// Enough reports whether every threshold has what it wants, minimum reclaim included.
func Enough(thresholds []pod.Threshold, seen Observations) bool {
	return !slices.ContainsFunc(thresholds, func(t pod.Threshold) bool { return Met(t, seen, true) })
}

func conditionOf(s pod.Signal) v1.NodeConditionType {
	switch s {
	case pod.MemoryAvailable, pod.AllocatableMemory:
		return v1.NodeMemoryPressure
	case pod.PIDAvailable:
		return v1.NodePIDPressure
	}
	return v1.NodeDiskPressure
}

// Resources by the names that a kubelet has for them.
const (
	inodes v1.ResourceName = "inodes"
	pids   v1.ResourceName = "pids"
)

// ResourceOf is what a signal is short of.
func ResourceOf(s pod.Signal) v1.ResourceName {
	switch s {
	case pod.MemoryAvailable, pod.AllocatableMemory:
		return v1.ResourceMemory
	case pod.PIDAvailable:
		return pids
	case pod.NodeFsInodesFree, pod.ImageFsInodesFree:
		return inodes
	}
	return v1.ResourceEphemeralStorage
}

func quantity(of v1.ResourceName, n int64) string {
	if of == inodes || of == pids {
		return resource.NewQuantity(n, resource.DecimalSI).String()
	}
	return resource.NewQuantity(n, resource.BinarySI).String()
}
