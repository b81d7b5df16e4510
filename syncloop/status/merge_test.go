package status

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/pod"
)

func TestMergeKeepsWhatIsOthers(t *testing.T) {
	claim := "claim"
	api := v1.PodStatus{
		Phase: v1.PodRunning, QOSClass: v1.PodQOSBurstable,
		Conditions: []v1.PodCondition{
			{Type: "ex/gate", Status: v1.ConditionTrue},
			{Type: v1.PodReady, Status: v1.ConditionFalse, Reason: "NodeLost"},
			{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "PreemptionByScheduler"},
		},
		ResourceClaimStatuses: []v1.PodResourceClaimStatus{{Name: "c", ResourceClaimName: &claim}},
	}
	ours := v1.PodStatus{
		Phase: v1.PodRunning, QOSClass: v1.PodQOSBestEffort,
		Conditions: []v1.PodCondition{
			{Type: "ex/gate", Status: v1.ConditionFalse},  // an older copy
			{Type: "ex/gone", Status: v1.ConditionTrue},   // removed since by its owner
			{Type: v1.PodReady, Status: v1.ConditionTrue}, // ours
		},
	}
	got := Merge(api, ours)
	want := v1.PodStatus{
		Phase: v1.PodRunning, QOSClass: v1.PodQOSBurstable,
		Conditions: []v1.PodCondition{
			{Type: "ex/gate", Status: v1.ConditionTrue},
			{Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "PreemptionByScheduler"},
			{Type: v1.PodReady, Status: v1.ConditionTrue},
		},
		ResourceClaimStatuses: api.ResourceClaimStatuses,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	if d := cmp.Diff(got, Merge(got, ours)); d != "" {
		t.Errorf("merging twice changes it:\n%s", d)
	}
}

func TestMergeNeverLeavesTerminal(t *testing.T) {
	api := v1.PodStatus{Phase: v1.PodFailed, Reason: "Evicted"}
	ours := v1.PodStatus{Phase: v1.PodRunning, Conditions: []v1.PodCondition{
		{Type: v1.PodReady, Status: v1.ConditionTrue}, {Type: v1.ContainersReady, Status: v1.ConditionTrue}}}
	got := Merge(api, ours)
	if got.Phase != v1.PodFailed || got.Reason != "Evicted" {
		t.Errorf("phase %s reason %q", got.Phase, got.Reason)
	}
	for _, c := range got.Conditions {
		if c.Status != v1.ConditionFalse || c.Reason != "PodFailed" {
			t.Errorf("%s is %s %s in a failed pod", c.Type, c.Status, c.Reason)
		}
	}
}

func quantities(cpu, memory string) v1.ResourceList {
	l := v1.ResourceList{}
	for n, q := range map[v1.ResourceName]string{v1.ResourceCPU: cpu, v1.ResourceMemory: memory} {
		if q != "" {
			l[n] = resource.MustParse(q)
		}
	}
	return l
}

func TestPodRequests(t *testing.T) {
	always := v1.ContainerRestartPolicyAlways
	req := func(cpu string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Requests: quantities(cpu, "")}
	}
	spec := &v1.PodSpec{
		InitContainers: []v1.Container{
			{Resources: req("3")},                         // alone: 3
			{RestartPolicy: &always, Resources: req("1")}, // sidecar
			{Resources: req("4")},                         // 4 + 1
		},
		Containers: []v1.Container{{Resources: req("1")}, {Resources: req("2")}}, // 3 + 1
		Overhead:   quantities("500m", ""),
	}
	got := podRequests(spec)
	if q := got[v1.ResourceCPU]; q.Cmp(resource.MustParse("5500m")) != 0 {
		t.Errorf("cpu %s, want 5500m", q.String())
	}
	if podRequests(&v1.PodSpec{Containers: []v1.Container{{}}}) != nil {
		t.Error("a pod without requests has requests")
	}
}

func TestAddresses(t *testing.T) {
	s := newScript()
	s.in.HostIPs = []string{"2001:db8::1", "192.0.2.1"}
	s.in.Observed.Sandboxes = []pod.Sandbox{{Ready: true, IPs: []string{"10.0.0.5", "10.0.0.6", "2001:DB8::5"}}}
	st := Generate(s.in)
	want := []v1.PodIP{{IP: "2001:db8::5"}, {IP: "10.0.0.5"}}
	if d := cmp.Diff(want, st.PodIPs); d != "" || st.PodIP != "2001:db8::5" {
		t.Errorf("podIP %s; %s", st.PodIP, d)
	}
	// A pod keeps the address of a sandbox that is gone. A new sandbox without an address has none.
	s.in.Old, s.in.Observed.Sandboxes = st, []pod.Sandbox{{Ready: false}}
	if st := Generate(s.in); st.PodIP != "2001:db8::5" {
		t.Errorf("a dead sandbox's address is forgotten: %q", st.PodIP)
	}
	s.in.Observed.Sandboxes = []pod.Sandbox{{Ready: true}}
	if st := Generate(s.in); st.PodIP != "" {
		t.Errorf("address %q of an older sandbox", st.PodIP)
	}
}

func TestDetailsOfAContainer(t *testing.T) {
	s := newScript()
	mode := v1.RecursiveReadOnlyIfPossible
	s.in.RuntimeName, s.in.RecursiveReadOnly = "cri-o", true
	s.in.Pod.Spec.Containers = []v1.Container{{Name: "c", Image: "img",
		Resources:    v1.ResourceRequirements{Requests: quantities("1", "")},
		VolumeMounts: []v1.VolumeMount{{Name: "v", MountPath: "/v", ReadOnly: true, RecursiveReadOnly: &mode}}}}
	s.in.Observed.Containers = []pod.Container{{ID: "id", Name: "c", State: pod.StateExited, ExitCode: 2, ImageRef: "ref",
		Message: strings.Repeat("x", 20<<10), User: &pod.User{UID: 5, GID: 6}, StopSignal: "SIGQUIT"}}
	c := Generate(s.in).ContainerStatuses[0]
	if c.StopSignal != nil {
		t.Errorf("a node without stop signals shows %s", *c.StopSignal)
	}
	s.in.StopSignals = true
	if with := Generate(s.in).ContainerStatuses[0]; with.StopSignal == nil || *with.StopSignal != v1.SIGQUIT {
		t.Errorf("the stop signal is %v", with.StopSignal)
	}
	s.in.StopSignals = false
	on := v1.RecursiveReadOnlyEnabled
	if d := cmp.Diff([]v1.VolumeMountStatus{{Name: "v", MountPath: "/v", ReadOnly: true, RecursiveReadOnly: &on}}, c.VolumeMounts); d != "" {
		t.Error(d)
	}
	if c.ContainerID != "cri-o://id" || c.ImageID != "ref" || c.Image != "img" || c.User.Linux.UID != 5 {
		t.Errorf("%+v", c)
	}
	if q := c.AllocatedResources[v1.ResourceCPU]; q.String() != "1" {
		t.Errorf("allocated %v", c.AllocatedResources)
	}
	if term := c.State.Terminated; len(term.Message) != 12<<10 || term.Reason != "Error" || term.ContainerID != "cri-o://id" {
		t.Errorf("message of %d bytes, reason %q", len(term.Message), term.Reason)
	}
}

func TestStatusBeforeAnyObservationIsTheAPIs(t *testing.T) {
	s := newScript()
	s.in.Observed.Seq = 0
	s.in.Pod.Spec.Containers = []v1.Container{{Name: "c"}}
	s.in.Pod.Status = v1.PodStatus{Phase: v1.PodRunning, StartTime: &metav1.Time{Time: epoch},
		ContainerStatuses: []v1.ContainerStatus{{Name: "c", Ready: true, State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}}
	if d := cmp.Diff(s.in.Pod.Status, Generate(s.in)); d != "" {
		t.Errorf("changed without having looked:\n%s", d)
	}
}
