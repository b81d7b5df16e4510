package statuswriter

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestStatusPatch compares the patch between two statuses with the one that the library makes of their
// JSON.
func TestStatusPatch(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	container := func(name string, restarts int32, state v1.ContainerState) v1.ContainerStatus {
		return v1.ContainerStatus{Name: name, RestartCount: restarts, State: state, Image: "i", ContainerID: "containerd://" + name,
			AllocatedResources: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1500m")}, User: &v1.ContainerUser{Linux: &v1.LinuxContainerUser{UID: 1 << 40}}}
	}
	waits := v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	runs := v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: at}}
	ended := v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled", FinishedAt: at}}
	ready := func(is v1.ConditionStatus) v1.PodCondition {
		return v1.PodCondition{Type: v1.PodReady, Status: is, LastTransitionTime: at, ObservedGeneration: 3}
	}
	foreign := v1.PodCondition{Type: "example.com/gate", Status: v1.ConditionTrue, LastProbeTime: at}
	all := []v1.PodStatus{
		{},
		{Phase: v1.PodPending, QOSClass: v1.PodQOSBurstable, StartTime: &at},
		{Phase: v1.PodPending, Conditions: []v1.PodCondition{ready(v1.ConditionFalse)}, ContainerStatuses: []v1.ContainerStatus{container("a", 0, waits), container("b", 0, waits)}},
		{Phase: v1.PodRunning, Conditions: []v1.PodCondition{foreign, ready(v1.ConditionTrue)}, PodIP: "10.0.0.1", PodIPs: []v1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}},
			ContainerStatuses: []v1.ContainerStatus{container("a", 0, runs), container("b", 1, waits)}, StartTime: &at},
		{Phase: v1.PodFailed, Reason: "Evicted", Conditions: []v1.PodCondition{ready(v1.ConditionFalse), foreign}, PodIPs: []v1.PodIP{{IP: "10.0.0.1"}},
			InitContainerStatuses: []v1.ContainerStatus{container("i", 2, ended)}, ContainerStatuses: []v1.ContainerStatus{container("b", 1, ended), container("a", 3, runs)}},
		{Phase: v1.PodRunning, HostIPs: []v1.HostIP{{IP: "10.0.0.2"}}, Resize: v1.PodResizeStatusDeferred, ObservedGeneration: 7},
	}
	for i, from := range all {
		for j, to := range all {
			body, err := statusPatch("u", from, to)
			testutil.Must(t, err)
			if i == j {
				if body != nil {
					t.Errorf("%d: a patch of equal statuses: %s", i, body)
				}
				continue
			}
			old, err := json.Marshal(v1.Pod{Status: from})
			testutil.Must(t, err)
			next, err := json.Marshal(v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Status: to})
			testutil.Must(t, err)
			want, err := strategicpatch.CreateTwoWayMergePatch(old, next, v1.Pod{})
			testutil.Must(t, err)
			var a, b any
			testutil.Must(t, json.Unmarshal(body, &a))
			testutil.Must(t, json.Unmarshal(want, &b))
			if diff := cmp.Diff(b, a); diff != "" {
				t.Errorf("from %d to %d: -want +got\n%s", i, j, diff)
			}
		}
	}
}
