package admit

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	helper "k8s.io/component-helpers/resource"

	"github.com/bowline-k8s/bowline/pod"
)

// shortage is one resource that does not suffice: CPU in millicores, others in their base unit.
type shortage struct {
	name                      v1.ResourceName
	requested, used, capacity int64
}

func (s shortage) rejection() *Rejection {
	return &Rejection{reasonOutOf + string(s.name), fmt.Sprintf("Node didn't have enough resource: %s, requested: %d, used: %d, capacity: %d",
		s.name, s.requested, s.used, s.capacity)}
}

// missing is how much would have to be freed.
func (s shortage) missing() int64 { return s.requested - (s.capacity - s.used) }

// shortages lists the resources that the pod lacks on the node with the others: pods first, then
// CPU, memory and ephemeral storage, then the rest by name.
func shortages(p *v1.Pod, others []*v1.Pod, allocatable v1.ResourceList) []shortage {
	var out []shortage
	used := requested(others, helper.PodResourcesOptions{UseStatusResources: true})
	if most := amount(v1.ResourcePods, allocatable[v1.ResourcePods]); int64(len(others))+1 > most {
		out = append(out, shortage{v1.ResourcePods, 1, int64(len(others)), most})
	}
	requests := helper.PodRequests(p, helper.PodResourcesOptions{})
	for _, name := range order(requests) {
		s := shortage{name, amount(name, requests[name]), amount(name, used[name]), amount(name, allocatable[name])}
		if _, offered := allocatable[name]; !offered && extended(name) {
			continue // a cluster-level resource, which no node offers
		}
		if s.requested > 0 && s.missing() > 0 {
			out = append(out, s)
		}
	}
	return out
}

// requested adds up the requests of the pods.
func requested(pods []*v1.Pod, options helper.PodResourcesOptions) v1.ResourceList {
	out := v1.ResourceList{}
	for _, p := range pods {
		for name, q := range helper.PodRequests(p, options) {
			sum := out[name]
			sum.Add(q)
			out[name] = sum
		}
	}
	return out
}

// order lists the resources that are accounted on a node.
func order(requests v1.ResourceList) []v1.ResourceName {
	first := []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourceEphemeralStorage}
	var rest []v1.ResourceName
	for name := range requests {
		if strings.HasPrefix(string(name), v1.ResourceHugePagesPrefix) || strings.Contains(string(name), "/") {
			rest = append(rest, name)
		}
	}
	slices.Sort(rest)
	return append(first, rest...)
}

// extended reports whether the resource is an extended one, outside the kubernetes.io namespace.
func extended(name v1.ResourceName) bool {
	return strings.Contains(string(name), "/") && !strings.Contains(string(name), v1.ResourceDefaultNamespacePrefix)
}

func amount(name v1.ResourceName, q resource.Quantity) int64 {
	if name == v1.ResourceCPU {
		return q.MilliValue()
	}
	return q.Value()
}

// bestEffort reports whether the pod has QoS class BestEffort.
func bestEffort(p *v1.Pod) bool { return pod.QOSClass(p) == v1.PodQOSBestEffort }

// portTaken reports whether another pod has a host port that the pod asks for.
func portTaken(p *v1.Pod, others []*v1.Pod) bool {
	wants := hostPorts(p)
	if len(wants) == 0 {
		return false
	}
	for _, o := range others {
		for _, has := range hostPorts(o) {
			for _, want := range wants {
				if want.port == has.port && want.protocol == has.protocol && (want.ip == has.ip || want.ip == everywhere || has.ip == everywhere) {
					return true
				}
			}
		}
	}
	return false
}

const everywhere = "0.0.0.0"

type hostPort struct {
	ip       string
	protocol v1.Protocol
	port     int32
}

// hostPorts lists the host ports of the main containers and the sidecars.
func hostPorts(p *v1.Pod) []hostPort {
	var out []hostPort
	add := func(c *v1.Container) {
		for _, port := range c.Ports {
			if port.HostPort > 0 {
				out = append(out, hostPort{cmp.Or(port.HostIP, everywhere), cmp.Or(port.Protocol, v1.ProtocolTCP), port.HostPort})
			}
		}
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; pod.Sidecar(c) {
			add(c)
		}
	}
	for i := range p.Spec.Containers {
		add(&p.Spec.Containers[i])
	}
	return out
}

// Victims are the pods to end so that a critical pod fits with the others, at their allocation. The
// result is zero if nothing is lacking. A rejection means that ending pods cannot free enough.
func Victims(p *v1.Pod, others []*v1.Pod, allocatable v1.ResourceList) Verdict {
	lacking := shortages(p, others, allocatable)
	if len(lacking) == 0 {
		return Verdict{}
	}
	out, err := victims(p, others, lacking)
	if err != nil {
		return Verdict{Rejection: &Rejection{ReasonUnexpected, "Unexpected error while attempting to recover from admission failure: " + err.Error()}}
	}
	return Verdict{Preempt: out, Lacking: lacking[0].name}
}

// victims picks the pods to preempt for the resources that a critical pod lacks: as few as suffice, of the lowest
// QoS class first, and within a class those closest to the missing amount.
func victims(p *v1.Pod, others []*v1.Pod, lacking []shortage) ([]*v1.Pod, error) {
	byClass := map[v1.PodQOSClass][]*v1.Pod{}
	var all []*v1.Pod
	for _, o := range others {
		if preemptable(p, o) {
			byClass[pod.QOSClass(o)] = append(byClass[pod.QOSClass(o)], o)
			all = append(all, o)
		}
	}
	need := requirementsOf(lacking)
	if left := need.less(all); len(left) > 0 {
		return nil, errors.New("preemption: error finding a set of pods to preempt: no set of running pods found to reclaim resources: " + left.String())
	}
	low, middle, high := byClass[v1.PodQOSBestEffort], byClass[v1.PodQOSBurstable], byClass[v1.PodQOSGuaranteed]
	fromHigh := nearest(high, need.less(low).less(middle))
	fromMiddle := nearest(middle, need.less(low).less(fromHigh))
	fromLow := nearest(low, need.less(fromMiddle).less(fromHigh))
	return slices.Concat(fromLow, fromMiddle, fromHigh), nil
}

func preemptable(by, o *v1.Pod) bool {
	if Critical(by) && !Critical(o) {
		return true
	}
	return by.Spec.Priority != nil && o.Spec.Priority != nil && *by.Spec.Priority > *o.Spec.Priority
}

// requirement is how much of one resource is still lacking.
type requirement struct {
	name  v1.ResourceName
	lacks int64
}

type requirements []requirement

func requirementsOf(lacking []shortage) requirements {
	var out requirements
	for _, s := range lacking {
		out = append(out, requirement{s.name, s.missing()})
	}
	return out
}

func (rs requirements) String() string {
	var b strings.Builder
	for _, r := range rs {
		fmt.Fprintf(&b, "(res: %v, q: %d), ", r.name, r.lacks)
	}
	return "[" + b.String() + "]"
}

func requestOf(p *v1.Pod, name v1.ResourceName) int64 {
	if name == v1.ResourcePods {
		return 1
	}
	return amount(name, helper.PodRequests(p, helper.PodResourcesOptions{})[name])
}

// less returns the amounts that are still missing once these pods have ended.
func (rs requirements) less(pods []*v1.Pod) requirements {
	var out requirements
	for _, r := range rs {
		for _, p := range pods {
			r.lacks -= requestOf(p, r.name)
		}
		if r.lacks > 0 {
			out = append(out, r)
		}
	}
	return out
}

// distance is how far ending this one pod leaves the node from everything that is lacking, with
// equal weight for each resource.
func (rs requirements) distance(p *v1.Pod) float64 {
	d := 0.0
	for _, r := range rs {
		if left := float64(r.lacks - requestOf(p, r.name)); left > 0 {
			d += left / float64(r.lacks) * left / float64(r.lacks)
		}
	}
	return d
}

// nearest picks pods until nothing is lacking. The caller has checked that there are enough.
func nearest(pods []*v1.Pod, need requirements) []*v1.Pod {
	pods = slices.Clone(pods)
	var out []*v1.Pod
	for len(need) > 0 && len(pods) > 0 {
		best := 0
		for i := range pods {
			if d, b := need.distance(pods[i]), need.distance(pods[best]); d < b || d == b && smaller(pods[i], pods[best]) {
				best = i
			}
		}
		need = need.less(pods[best : best+1])
		out = append(out, pods[best])
		pods = slices.Delete(pods, best, best+1)
	}
	return out
}

// smaller compares requests, of memory first and then of CPU.
func smaller(a, b *v1.Pod) bool {
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		if x, y := requestOf(a, name), requestOf(b, name); x != y {
			return x < y
		}
	}
	return false
}
