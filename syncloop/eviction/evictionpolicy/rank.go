package evictionpolicy

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	helper "k8s.io/component-helpers/resource"

	"github.com/bowline-k8s/bowline/pod"
)

// Disk is an amount of a file system.
type Disk struct{ Bytes, Inodes int64 }

func (d Disk) plus(o Disk) Disk { return Disk{d.Bytes + o.Bytes, d.Inodes + o.Inodes} }

func (d Disk) of(r v1.ResourceName) int64 {
	if r == inodes {
		return d.Inodes
	}
	return d.Bytes
}

// Container is the usage of one container.
type Container struct {
	Name   string
	Memory int64 // bytes of its working set
	RootFs Disk  // written outside volumes
	Logs   Disk
}

// Usage is the usage of one pod.
type Usage struct {
	Containers []Container
	Volumes    map[string]Disk // disk-backed emptyDirs by name
	Logs       Disk            // of all its containers
	Processes  int64
}

func (u *Usage) memory() (sum int64) {
	for _, c := range u.Containers {
		sum += c.Memory
	}
	return sum
}

// disk sums the pod's usage of the file system that is short.
func (u *Usage) disk(rootFs, others bool) (sum Disk) {
	if rootFs {
		for _, c := range u.Containers {
			sum = sum.plus(c.RootFs)
		}
	}
	if others {
		sum = sum.plus(u.Logs)
		for _, v := range u.Volumes {
			sum = sum.plus(v)
		}
	}
	return sum
}

// Usages are by pod UID; a pod without stats is absent.
type Usages map[string]*Usage

// Rank sorts pods, the first to evict first. A pod without stats precedes all others. Then come
// pods that use more than their request, then lower priority, then the greatest usage above the
// request. For PIDs, which have no request, lower priority comes first of all, then pods without
// stats, then the greatest usage. ownImageFs: images and writable layers have a file system of
// their own.
func Rank(pods []*v1.Pod, usages Usages, s pod.Signal, ownImageFs bool) []*v1.Pod {
	what := ResourceOf(s)
	rootFs, others := true, true
	switch {
	case !ownImageFs:
	case s == pod.NodeFsAvailable || s == pod.NodeFsInodesFree:
		rootFs = false
	default:
		others = false
	}
	has := func(u *Usage) int64 {
		switch what {
		case v1.ResourceMemory:
			return u.memory()
		case pids:
			return u.Processes
		}
		return u.disk(rootFs, others).of(what)
	}
	out := slices.Clone(pods)
	slices.SortStableFunc(out, func(a, b *v1.Pod) int {
		x, y := usages[string(a.UID)], usages[string(b.UID)]
		if what == pids {
			if c := cmp.Compare(priority(a), priority(b)); c != 0 {
				return c
			}
		}
		if x == nil || y == nil {
			return truth(y == nil) - truth(x == nil)
		}
		xs, ys := has(x), has(y)
		if what == pids {
			return cmp.Compare(ys, xs)
		}
		return cmp.Or(truth(ys > request(b, what))-truth(xs > request(a, what)),
			cmp.Compare(priority(a), priority(b)),
			// Inodes have no request; the kubelet subtracts the request for ephemeral storage.
			cmp.Compare(ys-request(b, offset(what)), xs-request(a, offset(what))))
	})
	return out
}

func offset(r v1.ResourceName) v1.ResourceName {
	if r == inodes {
		return v1.ResourceEphemeralStorage
	}
	return r
}

func truth(b bool) int {
	if b {
		return 1
	}
	return 0
}

func priority(p *v1.Pod) int32 {
	if p.Spec.Priority == nil {
		return 0
	}
	return *p.Spec.Priority
}

func request(p *v1.Pod, r v1.ResourceName) int64 {
	q := helper.PodRequests(p, helper.PodResourcesOptions{})[r]
	return q.Value()
}

// Message is the kubelet's message for the eviction of the pod, and the annotations of the event
// that reports it.
func Message(p *v1.Pod, u *Usage, due []pod.Threshold, seen Observations) (string, map[string]string) {
	what := ResourceOf(due[0].Signal)
	var b strings.Builder
	fmt.Fprintf(&b, "The node was low on resource: %v. ", what)
	for _, t := range due {
		if o, ok := seen[t.Signal]; ok && ResourceOf(t.Signal) == what {
			wants := quantity(what, t.Amount.Of(o.Capacity))
			if t.Amount.Quantity != nil {
				wants = t.Amount.Quantity.String()
			}
			fmt.Fprintf(&b, "Threshold quantity: %v, available: %v. ", wants, quantity(what, o.Available))
			break
		}
	}
	notes := map[string]string{}
	if u == nil {
		return b.String(), notes
	}
	more := func(kind, name string, has int64, asked string) {
		fmt.Fprintf(&b, "%s %s was using %s, request is %s, has larger consumption of %v. ", kind, name, quantity(what, has), asked, what)
	}
	if r := p.Spec.Resources; r != nil && what == v1.ResourceMemory {
		if q, ok := r.Requests[what]; ok {
			more("Pod", p.Name, u.memory(), q.String())
			notes["offending_pod"], notes["offending_pod_usage"] = p.Name, quantity(what, u.memory())
		}
	}
	var names, amounts []string
	for _, c := range u.Containers {
		spec := pod.Find(pod.Containers(&p.Spec), c.Name)
		if spec == nil || what != v1.ResourceMemory && what != v1.ResourceEphemeralStorage {
			continue
		}
		has := c.Memory
		if what == v1.ResourceEphemeralStorage {
			has = c.RootFs.Bytes + c.Logs.Bytes
		}
		if q := spec.Resources.Requests[what]; has > q.Value() {
			more("Container", c.Name, has, q.String())
			names, amounts = append(names, c.Name), append(amounts, quantity(what, has))
		}
	}
	notes["offending_containers"] = strings.Join(names, ",")
	notes["offending_containers_usage"] = strings.Join(amounts, ",")
	notes["starved_resource"] = string(what)
	return b.String(), notes
}

// Limited reports whether the pod has disk limits of its own, so that its usage must be measured
// even while nothing is short.
func Limited(p *v1.Pod) bool {
	for i := range p.Spec.Volumes {
		if e := p.Spec.Volumes[i].EmptyDir; e != nil && e.Medium == v1.StorageMediumDefault && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 {
			return true
		}
	}
	limits := helper.PodLimits(p, helper.PodResourcesOptions{})
	_, has := limits[v1.ResourceEphemeralStorage]
	return has
}

// Limit is a kind of limit on a pod's own disk usage, with the kubelet's name in its metrics.
type Limit string

const (
	EmptyDirLimit  Limit = "emptydirfs.limit"
	PodLimit       Limit = "ephemeralpodfs.limit"
	ContainerLimit Limit = "ephemeralcontainerfs.limit"
)

// Exceeded returns which of its own disk limits the pod exceeds, with a message for users; both are
// empty if it exceeds none.
func Exceeded(p *v1.Pod, u *Usage, ownImageFs bool) (Limit, string) {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if e := v.EmptyDir; e != nil && e.SizeLimit != nil && e.SizeLimit.Sign() > 0 && u.Volumes[v.Name].Bytes > e.SizeLimit.Value() {
			return EmptyDirLimit, fmt.Sprintf("Usage of EmptyDir volume %q exceeds the limit %q. ", v.Name, e.SizeLimit.String())
		}
	}
	limits := helper.PodLimits(p, helper.PodResourcesOptions{})
	if limit, ok := limits[v1.ResourceEphemeralStorage]; ok && u.disk(true, true).Bytes > limit.Value() {
		return PodLimit, fmt.Sprintf("Pod ephemeral local storage usage exceeds the total limit of containers %s. ", limit.String())
	}
	for _, c := range u.Containers {
		spec := pod.Find(pod.Containers(&p.Spec), c.Name)
		if spec == nil {
			continue
		}
		has := c.Logs.Bytes
		if !ownImageFs {
			has += c.RootFs.Bytes
		}
		if limit := spec.Resources.Limits[v1.ResourceEphemeralStorage]; !limit.IsZero() && has > limit.Value() {
			return ContainerLimit, fmt.Sprintf("Container %s exceeded its local ephemeral storage limit %q. ", c.Name, limit.String())
		}
	}
	return "", ""
}
