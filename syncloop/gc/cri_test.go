package gc

import (
	"context"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/gc/gcpolicy"
)

// The GC sweep removes a log with its container, so it must know the log's path.
func TestTheSweepKnowsTheLogs(t *testing.T) {
	labels := map[string]string{
		pod.LabelPodNamespace: "shop", pod.LabelPodName: "web-0", pod.LabelPodUID: "1234", pod.LabelContainerName: "main",
	}
	list := []*runtimeapi.Container{
		{Id: "ours", Metadata: &runtimeapi.ContainerMetadata{Name: "main", Attempt: 2}, Labels: labels},
		{Id: "of no pod", Metadata: &runtimeapi.ContainerMetadata{Name: "main"}},
		{Id: "without metadata", Labels: labels},
	}
	r := CRI{Offset: func() time.Duration { return 0 }, Logs: "/var/log/pods",
		ListAll: func(context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
			return nil, list, nil
		}}
	_, containers, err := r.List(t.Context())
	testutil.Must(t, err)
	for i, want := range []string{"/var/log/pods/shop_web-0_1234/main/2.log", "", ""} {
		if got := containers[i].LogPath; got != want {
			t.Errorf("%s: %q, want %q", containers[i].ID, got, want)
		}
	}
}

// A container that was created and is about to start has not ended.
func TestTheSweepTellsStatesApart(t *testing.T) {
	want := map[runtimeapi.ContainerState]gcpolicy.State{
		runtimeapi.ContainerState_CONTAINER_CREATED: gcpolicy.Created, runtimeapi.ContainerState_CONTAINER_RUNNING: gcpolicy.Running,
		runtimeapi.ContainerState_CONTAINER_EXITED: gcpolicy.Dead, runtimeapi.ContainerState_CONTAINER_UNKNOWN: gcpolicy.Unknown,
	}
	for number, name := range runtimeapi.ContainerState_name {
		state := runtimeapi.ContainerState(number)
		r := CRI{Offset: func() time.Duration { return 0 }, Logs: "/var/log/pods",
			ListAll: func(context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
				return nil, []*runtimeapi.Container{{State: state}}, nil
			}}
		_, containers, err := r.List(t.Context())
		if expected, has := want[state]; err != nil || !has || containers[0].State != expected {
			t.Errorf("%s: %v, %v; want %v", name, containers, err, expected)
		}
	}
}
