package admit

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

func aNode() Node {
	return Node{
		Name: "box", OS: "linux", Labels: map[string]string{"disk": "ssd"}, AppArmor: true, StrictGroups: true,
		Sysctls: NewSysctls("6.1.0-13-amd64", []string{"net.core.*", "kernel.msgmax"}),
		Allocatable: v1.ResourceList{
			v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("1Gi"),
			v1.ResourceEphemeralStorage: resource.MustParse("10Gi"), v1.ResourcePods: resource.MustParse("3"),
			"example.com/gpu": resource.MustParse("1"),
		},
	}
}

// asking makes a pod whose one container has these requests.
func asking(name string, ask ...string) *v1.Pod {
	p := &v1.Pod{}
	p.Name, p.UID = name, types.UID(name)
	p.Spec.Containers = []v1.Container{{Name: "app"}}
	p.Spec.Containers[0].Resources.Requests = v1.ResourceList{}
	for i := 0; i < len(ask); i += 2 {
		p.Spec.Containers[0].Resources.Requests[v1.ResourceName(ask[i])] = resource.MustParse(ask[i+1])
	}
	return p
}

func having(p *v1.Pod, change func(*v1.Pod)) *v1.Pod { change(p); return p }

func port(n int32, ip string) func(*v1.Pod) {
	return func(p *v1.Pod) { p.Spec.Containers[0].Ports = []v1.ContainerPort{{HostPort: n, HostIP: ip}} }
}

func sysctlOf(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: name}}}
	}
}

func critical(p *v1.Pod) {
	n := int32(2_000_001_000)
	p.Spec.Priority, p.Spec.PriorityClassName = &n, "system-node-critical"
}

// The pods that a kubelet rejects, with reason and message; an empty reason means admitted.
func TestOnNode(t *testing.T) {
	strict := v1.SupplementalGroupsPolicyStrict
	localhost := v1.AppArmorProfileTypeLocalhost
	for _, tc := range []struct {
		name            string
		pod             *v1.Pod
		others          []*v1.Pod
		change          func(*Node)
		reason, message string
	}{
		{name: "plain", pod: asking("p")},
		{name: "all of it", pod: asking("p", "cpu", "2", "memory", "1Gi", "ephemeral-storage", "10Gi", "example.com/gpu", "1")},
		{name: "cpu", pod: asking("p", "cpu", "1500m"), others: []*v1.Pod{asking("o", "cpu", "600m")},
			reason: "OutOfcpu", message: "Node didn't have enough resource: cpu, requested: 1500, used: 600, capacity: 2000"},
		{name: "memory", pod: asking("p", "memory", "1Gi"), others: []*v1.Pod{asking("o", "memory", "1Mi")},
			reason: "OutOfmemory", message: "Node didn't have enough resource: memory, requested: 1073741824, used: 1048576, capacity: 1073741824"},
		{name: "disk", pod: asking("p", "ephemeral-storage", "11Gi"),
			reason: "OutOfephemeral-storage", message: "Node didn't have enough resource: ephemeral-storage, requested: 11811160064, used: 0, capacity: 10737418240"},
		{name: "pods", pod: asking("p"), others: []*v1.Pod{asking("a"), asking("b"), asking("c")},
			reason: "OutOfpods", message: "Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"},
		{name: "pods before cpu", pod: asking("p", "cpu", "9"), others: []*v1.Pod{asking("a"), asking("b"), asking("c")}, reason: "OutOfpods"},
		{name: "a device", pod: asking("p", "example.com/gpu", "1"), others: []*v1.Pod{asking("o", "example.com/gpu", "1")},
			reason: "OutOfexample.com/gpu", message: "Node didn't have enough resource: example.com/gpu, requested: 1, used: 1, capacity: 1"},
		{name: "a resource of the cluster's", pod: asking("p", "example.com/licence", "7")},
		{name: "huge pages that there are not", pod: asking("p", "hugepages-2Mi", "2Mi"), reason: "OutOfhugepages-2Mi"},
		{name: "a selector", pod: having(asking("p"), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} }),
			reason: "NodeAffinity", message: "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		{name: "a selector that matches", pod: having(asking("p"), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })},
		{name: "cpu before a selector", pod: having(asking("p", "cpu", "9"), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "hdd"} }), reason: "OutOfcpu"},
		{name: "another node", pod: having(asking("p"), func(p *v1.Pod) { p.Spec.NodeName = "other" }),
			reason: "NodeName", message: "Predicate NodeName failed: node(s) didn't match the requested node name"},
		{name: "a port", pod: having(asking("p"), port(80, "")), others: []*v1.Pod{having(asking("o"), port(80, "10.0.0.1"))},
			reason: "NodePorts", message: "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		{name: "a port of another address", pod: having(asking("p"), port(80, "10.0.0.2")), others: []*v1.Pod{having(asking("o"), port(80, "10.0.0.1"))}},
		{name: "NoExecute", pod: asking("p"), change: func(n *Node) { n.Taints = []v1.Taint{{Key: "k", Value: "v", Effect: v1.TaintEffectNoExecute}} },
			reason: "TaintToleration", message: "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"},
		{name: "NoExecute, tolerated", pod: having(asking("p"), func(p *v1.Pod) { p.Spec.Tolerations = []v1.Toleration{{Key: "k", Value: "v"}} }),
			change: func(n *Node) { n.Taints = []v1.Taint{{Key: "k", Value: "v", Effect: v1.TaintEffectNoExecute}} }},
		{name: "NoExecute and a static pod", pod: having(asking("p"), func(p *v1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} }),
			change: func(n *Node) { n.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute}} }},
		{name: "NoSchedule", pod: asking("p"), change: func(n *Node) { n.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}} }},
		{name: "the label of another system", pod: having(asking("p"), func(p *v1.Pod) { p.Labels = map[string]string{"kubernetes.io/os": "windows"} }),
			reason: "PodOSSelectorNodeLabelDoesNotMatch", message: "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label"},
		{name: "another system", pod: having(asking("p"), func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: v1.Windows} }),
			reason: "PodOSNotSupported", message: "Failed to admit pod as the OS field doesn't match node OS"},
		{name: "strict groups", pod: having(asking("p"), func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{SupplementalGroupsPolicy: &strict}
		}),
			change: func(n *Node) { n.StrictGroups = false }, reason: "SupplementalGroupsPolicyNotSupported", message: "SupplementalGroupsPolicy=Strict is not supported in this node"},
		{name: "a safe sysctl", pod: having(asking("p"), sysctlOf("net.ipv4.tcp_rmem"))},
		{name: "an allowed one", pod: having(asking("p"), sysctlOf("net/core/somaxconn"))},
		{name: "one that is not", pod: having(asking("p"), sysctlOf("kernel.msgmnb")), reason: "SysctlForbidden", message: `forbidden sysctl: "kernel.msgmnb" not allowlisted`},
		{name: "a sysctl of the machine's network", pod: having(having(asking("p"), sysctlOf("net.core.somaxconn")), func(p *v1.Pod) { p.Spec.HostNetwork = true }),
			reason: "SysctlForbidden", message: `forbidden sysctl: "net.core.somaxconn" not allowed with host Net enabled`},
		{name: "memory pressure", pod: asking("p"), change: func(n *Node) { n.Pressure = []v1.NodeConditionType{v1.NodeMemoryPressure} },
			reason: "Evicted", message: "The node had condition: [MemoryPressure]. "},
		{name: "memory pressure and a request", pod: asking("p", "memory", "1Mi"), change: func(n *Node) { n.Pressure = []v1.NodeConditionType{v1.NodeMemoryPressure} }},
		{name: "memory pressure, tolerated", pod: having(asking("p"), func(p *v1.Pod) {
			p.Spec.Tolerations = []v1.Toleration{{Key: "node.kubernetes.io/memory-pressure", Operator: v1.TolerationOpExists}}
		}), change: func(n *Node) { n.Pressure = []v1.NodeConditionType{v1.NodeMemoryPressure} }},
		{name: "disk pressure and a request", pod: asking("p", "memory", "1Mi"), change: func(n *Node) { n.Pressure = []v1.NodeConditionType{v1.NodeDiskPressure} },
			reason: "Evicted", message: "The node had condition: [DiskPressure]. "},
		{name: "pressure and a critical pod", pod: having(asking("p"), critical), change: func(n *Node) { n.Pressure = []v1.NodeConditionType{v1.NodeDiskPressure} }},
		{name: "AppArmor where there is none", pod: having(asking("p"), func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}}
		}), change: func(n *Node) { n.AppArmor = false }, reason: "AppArmor", message: "Cannot enforce AppArmor: AppArmor is not enabled on the host"},
		{name: "AppArmor off where there is none", pod: having(asking("p"), func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}}
		}), change: func(n *Node) { n.AppArmor = false }},
		{name: "AppArmor without a name", pod: having(asking("p"), func(p *v1.Pod) {
			p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{AppArmorProfile: &v1.AppArmorProfile{Type: localhost}}
		}), reason: "AppArmor", message: "Cannot enforce AppArmor: invalid empty AppArmor profile name"},
		{name: "no room to make for a critical pod", pod: having(asking("p", "cpu", "2"), critical), others: []*v1.Pod{having(asking("o", "cpu", "1"), critical)},
			reason: "UnexpectedAdmissionError", message: "preemption: error finding a set of pods to preempt"},
	} {
		n := aNode()
		if tc.change != nil {
			tc.change(&n)
		}
		v := OnNode(tc.pod, tc.others, n)
		switch r := v.Rejection; {
		case tc.reason == "" && r != nil:
			t.Errorf("%s: rejected: %+v", tc.name, *r)
		case tc.reason != "" && (r == nil || r.Reason != tc.reason || !strings.Contains(r.Message, tc.message)):
			t.Errorf("%s: %+v, want %s %q", tc.name, r, tc.reason, tc.message)
		}
	}
}

// A critical pod is admitted, and the best victims end: those of the lowest class, and no more than
// needed.
func TestPreemption(t *testing.T) {
	guaranteed := func(p *v1.Pod) {
		p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
	}
	n := aNode()
	n.Allocatable[v1.ResourcePods] = resource.MustParse("10")
	others := []*v1.Pod{
		asking("best-effort"),
		having(asking("guaranteed", "cpu", "900m", "memory", "1Mi"), guaranteed),
		asking("small", "cpu", "100m"),
		asking("large", "cpu", "500m"),
		having(asking("cluster's", "cpu", "500m"), critical),
	}
	for _, tc := range []struct{ cpu, want string }{
		{"50m", "small"},
		{"100m", "small"},
		{"300m", "large"},
		{"600m", "small large"},
		{"700m", "guaranteed"},
		{"1600m", "none"},
	} {
		v := OnNode(having(asking("p", "cpu", tc.cpu), critical), others, n)
		var got []string
		for _, p := range v.Preempt {
			got = append(got, p.Name)
		}
		if v.Rejection != nil {
			got = []string{"none"}
		}
		if !sameNames(got, strings.Fields(tc.want)) {
			t.Errorf("%s: %v make room, want %s", tc.cpu, got, tc.want)
		}
	}
	n.Allocatable[v1.ResourcePods] = resource.MustParse("5")
	if v := OnNode(having(asking("p"), critical), others, n); len(v.Preempt) != 1 || v.Preempt[0].Name != "best-effort" {
		t.Errorf("for a pod's place %+v", v)
	}
}

func sameNames(a, b []string) bool {
	count := map[string]int{}
	for _, s := range a {
		count[s]++
	}
	for _, s := range b {
		count[s]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// A sysctl is safe from a kernel version on. If the version is unknown, only those that were always
// safe are.
func TestSysctlsByKernel(t *testing.T) {
	for _, tc := range []struct {
		kernel, name string
		want         bool
	}{
		{"4.14.9", "net.ipv4.tcp_rmem", false}, {"4.15.0-1-amd64", "net.ipv4.tcp_rmem", true},
		{"", "kernel.shm_rmid_forced", true}, {"what", "net.ipv4.tcp_rmem", false},
	} {
		n := Node{Sysctls: NewSysctls(tc.kernel, nil)}
		if r := sysctls(having(asking("p"), sysctlOf(tc.name)), n); (r == nil) != tc.want {
			t.Errorf("%s on %q: %+v", tc.name, tc.kernel, r)
		}
	}
}
