// Package order plans in which order, and with how much time, pods end before the host goes down:
// the kubelet's shutdownGracePeriodByPodPriority. The package is pure: the order depends on the pods
// and the periods.
package order

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Priorities that Kubernetes itself defines.
const (
	critical     int32 = 2_000_000_000   // of system-cluster-critical, the lowest critical priority
	nodeCritical int32 = critical + 1000 // of system-node-critical
)

// Period is the time for pods whose priority is at least Priority and below that of the next
// Period. The lowest Period also covers all lower priorities.
type Period struct {
	Priority int32
	Time     time.Duration // whole seconds
}

// Group is a Period with its pods. All end together. The next group follows when they have ended,
// or when the time is over.
type Group struct {
	Period
	Pods []Ending
}

// Ending is a pod that ends, and its grace period.
type Ending struct {
	Pod   *v1.Pod
	Grace time.Duration // the pod's own, or its group's time if that is less; at least 1 s
}

// Simple returns the periods of shutdownGracePeriod and shutdownGracePeriodCriticalPods: critical
// pods get the last part of the total time. It returns nil if there is no time.
func Simple(all, ofCritical time.Duration) []Period {
	if all <= 0 || ofCritical < 0 || ofCritical > all {
		return nil
	}
	return []Period{
		{0, (all - ofCritical).Truncate(time.Second)},
		{critical, ofCritical.Truncate(time.Second)},
	}
}

// Total returns the sum of all periods.
func Total(periods []Period) time.Duration {
	var sum time.Duration
	for _, p := range periods {
		sum += p.Time
	}
	return sum
}

// Plan puts each pod into the group of its priority, lowest first. It omits groups without pods, as
// there is nothing to wait for. Without periods there is no plan.
func Plan(periods []Period, pods []*v1.Pod) []Group {
	if len(periods) == 0 {
		return nil
	}
	groups := make([]Group, 0, len(periods))
	for _, p := range periods {
		groups = append(groups, Group{Period: p})
	}
	slices.SortStableFunc(groups, func(a, b Group) int { return cmp.Compare(a.Priority, b.Priority) })
	for _, p := range pods {
		of := Priority(p)
		// Use the last group whose priority is not above the pod's, or else the first.
		at, found := slices.BinarySearchFunc(groups, of, func(g Group, priority int32) int { return cmp.Compare(g.Priority, priority) })
		if !found {
			at = max(at-1, 0)
		}
		groups[at].Pods = append(groups[at].Pods, Ending{p, grace(p, groups[at].Time)})
	}
	return slices.DeleteFunc(groups, func(g Group) bool { return len(g.Pods) == 0 })
}

// Priority returns the priority that orders a pod. A static pod is always node-critical, whatever
// its manifest says: nothing resolves a priority class there.
func Priority(p *v1.Pod) int32 {
	var of int32
	if p.Spec.Priority != nil {
		of = *p.Spec.Priority
	}
	if pod.IsStatic(p) {
		of = max(of, nodeCritical)
	}
	return of
}

func grace(p *v1.Pod, most time.Duration) time.Duration {
	g := most
	if own := p.Spec.TerminationGracePeriodSeconds; own != nil && *own <= int64(most/time.Second) {
		g = time.Duration(*own) * time.Second
	}
	return max(g, time.Second)
}
