package main

import (
	"context"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// The sweep removes a log with its container, so it has to know where the log is.
func TestTheSweepKnowsTheLogs(t *testing.T) {
	labels := map[string]string{
		pod.LabelPodNamespace: "shop", pod.LabelPodName: "web-0", pod.LabelPodUID: "1234", pod.LabelContainerName: "main",
	}
	list := []*runtimeapi.Container{
		{Id: "ours", Metadata: &runtimeapi.ContainerMetadata{Name: "main", Attempt: 2}, Labels: labels},
		{Id: "of no pod", Metadata: &runtimeapi.ContainerMetadata{Name: "main"}},
		{Id: "without metadata", Labels: labels},
	}
	r := sweepRuntime{offset: func() time.Duration { return 0 }, logs: "/var/log/pods",
		list: func(context.Context) ([]*runtimeapi.PodSandbox, []*runtimeapi.Container, error) {
			return nil, list, nil
		}}
	_, containers, err := r.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"/var/log/pods/shop_web-0_1234/main/2.log", "", ""} {
		if got := containers[i].LogPath; got != want {
			t.Errorf("%s: %q, want %q", containers[i].ID, got, want)
		}
	}
}
