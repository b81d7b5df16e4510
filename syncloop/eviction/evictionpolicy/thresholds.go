// Package evictionpolicy decides which resources a host is short of, and which pods to evict. The package is
// pure: its decisions depend on the measurements, its previous state and the time.
package evictionpolicy

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/bowline-k8s/bowline/pod"
)

// Observation is the measurement of one signal.
type Observation struct{ Available, Capacity int64 }

// Observations are measurements by signal. A signal that was not measured is absent and meets no
// threshold.
type Observations map[pod.Signal]Observation

// State carries the results of one measurement to the next. The zero State is that of a node that has
// not measured yet.
type State struct {
	// since is when each threshold, by its index in the list, was first seen to be met; met holds
	// those whose grace period was over.
	since map[int]time.Time
	met   map[int]bool
	// seen is when the cause of each condition was last seen.
	seen map[v1.NodeConditionType]time.Time
}

// Result is the result of one look.
type Result struct {
	// Conditions are those that are True now, sorted.
	Conditions []v1.NodeConditionType
	// Due are the thresholds that require an eviction, the most urgent first.
	Due []pod.Threshold
}

// Step evaluates one look.
func Step(old State, thresholds []pod.Threshold, seen Observations, now time.Time, transition time.Duration) (State, Result) {
	next := State{since: map[int]time.Time{}, met: map[int]bool{}, seen: map[v1.NodeConditionType]time.Time{}}
	for c, at := range old.seen {
		next.seen[c] = at
	}
	var r Result
	for i, t := range thresholds {
		// A threshold that was due counts as met until its minimum reclaim is available, too.
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
		// A condition whose cause is present now is True, regardless of the transition period.
		if at.Equal(now) || now.Sub(at) < transition {
			r.Conditions = append(r.Conditions, c)
		}
	}
	slices.Sort(r.Conditions)
	slices.SortStableFunc(r.Due, func(a, b pod.Threshold) int { return rankOf(a.Signal) - rankOf(b.Signal) })
	return next, r
}

// rankOf sorts memory first, because nothing works on a host without memory.
func rankOf(s pod.Signal) int {
	if ResourceOf(s) == v1.ResourceMemory {
		return 0
	}
	return 1
}

// Met reports whether less than the threshold is left; with reclaim, less than the threshold plus
// its minimum reclaim.
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

// Enough reports whether no threshold is met, minimum reclaim included.
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

// Resources, named as in the kubelet.
const (
	inodes v1.ResourceName = "inodes"
	pids   v1.ResourceName = "pids"
)

// ResourceOf is the resource that a signal measures.
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
