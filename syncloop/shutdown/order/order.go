// Package order says in which order, and with how much time, pods are ended before their
// machine goes down: the kubelet's shutdownGracePeriodByPodPriority. It is pure.
package order

import (
	"cmp"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Priorities that Kubernetes itself knows.
const (
	critical     int32 = 2_000_000_000   // of system-cluster-critical, the least that is critical
	nodeCritical int32 = critical + 1000 // of system-node-critical
)

// Period is the time of the pods whose priority is at least this one, and less than the
// next one's. The lowest is that of all below it, too.
type Period struct {
	Priority int32
	Time     time.Duration // whole seconds
}

// Group is a Period with its pods: all end together, and the next group's when they have,
// or when the time is over.
type Group struct {
	Period
	Pods []Ending
}

// Ending is one pod's.
type Ending struct {
	Pod   *v1.Pod
	Grace time.Duration // its own, or its group's time where that is less; at least 1 s
}

// Simple are the periods of shutdownGracePeriod and shutdownGracePeriodCriticalPods: the
// critical pods have the last part of all the time. None where there is no time.
func Simple(all, ofCritical time.Duration) []Period {
	if all <= 0 || ofCritical < 0 || ofCritical > all {
		return nil
	}
	return []Period{
		{0, (all - ofCritical).Truncate(time.Second)},
		{critical, ofCritical.Truncate(time.Second)},
	}
}

// Total is the time of all periods.
func Total(periods []Period) time.Duration {
	var sum time.Duration
	for _, p := range periods {
		sum += p.Time
	}
	return sum
}

// Plan puts each pod into the group of its priority, lowest first. Groups without pods
// are left out: nobody waits for them. No periods: there is no order, and no plan.
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
		// The last whose priority is not more than the pod's, else the first.
		at, found := slices.BinarySearchFunc(groups, of, func(g Group, priority int32) int { return cmp.Compare(g.Priority, priority) })
		if !found {
			at = max(at-1, 0)
		}
		groups[at].Pods = append(groups[at].Pods, Ending{p, grace(p, groups[at].Time)})
	}
	return slices.DeleteFunc(groups, func(g Group) bool { return len(g.Pods) == 0 })
}

// Priority is by which a pod is ordered. A static pod is critical to its node whatever its
// manifest says: nobody resolves a priority class there.
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
