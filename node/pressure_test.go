package node

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// A pod that has not ended keeps an image, whatever name it uses and in whatever container.
func TestWantedImages(t *testing.T) {
	digest := "sha256:" + strings.Repeat("a", 64)
	image := &runtimeapi.Image{Id: "sha256:" + strings.Repeat("b", 64), RepoTags: []string{"docker.io/library/web:v1", "registry.lab:5000/web:latest"},
		RepoDigests: []string{"docker.io/library/web@" + digest}}
	for name, want := range map[string]bool{
		"web:v1": true, "docker.io/library/web:v1": true, "registry.lab:5000/web": true, "web@" + digest: true, "web:v9@" + digest: true, image.Id: true,
		"web": false, "web:v2": false, "registry.lab:5000/web:v1": false, "other/web:v1": false, "": false, "Not A Name": false,
	} {
		if got := named(image, name); got != want {
			t.Errorf("%q names it: %v", name, got)
		}
	}
	container := v1.Container{Image: "web:v1"}
	for what, spec := range map[string]v1.PodSpec{
		"container":           {Containers: []v1.Container{{Image: "x"}, container}},
		"init container":      {InitContainers: []v1.Container{container}},
		"ephemeral container": {EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon(container)}}},
		"volume":              {Volumes: []v1.Volume{{VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "web:v1"}}}}},
	} {
		p := &v1.Pod{Spec: spec}
		if !wanted([]*v1.Pod{p}, image) {
			t.Errorf("the image of an %s is not wanted", what)
		}
		if p.Status.Phase = v1.PodFailed; wanted([]*v1.Pod{p}, image) {
			t.Errorf("the image of an %s of a pod that has ended is wanted", what)
		}
	}
}

// The thresholds are the configured ones, hard ones first. One that can never be met is dropped,
// and pods do not get what the hard ones hold back.
func TestThresholds(t *testing.T) {
	cfg := &config.Host{}
	cfg.EvictionHard = map[string]string{"nodefs.available": "25%", "memory.available": "100Mi", "imagefs.available": "0%", "pid.available": "100%"}
	cfg.EvictionSoft = map[string]string{"memory.available": "1Gi"}
	cfg.EvictionSoftGracePeriod = map[string]string{"memory.available": "90s"}
	cfg.EvictionMinimumReclaim = map[string]string{"memory.available": "5Mi"}
	cfg.EnforceNodeAllocatable = []string{config.EnforcePods}
	if list, err := thresholds(cfg); err != nil || len(list) != 4 || list[1].Signal != pod.AllocatableMemory ||
		list[1].Amount != list[0].Amount || list[1].MinReclaim == nil || list[1].Soft {
		t.Errorf("with a limit of all pods: %+v, %v", list, err)
	}
	cfg.EnforceNodeAllocatable = []string{config.EnforceNone}
	list, err := thresholds(cfg)
	testutil.Must(t, err)
	var got []string
	for _, x := range list {
		words := string(x.Signal) + " " + x.Amount.String()
		if x.Soft {
			words += " after " + x.Grace.String()
		}
		if x.MinReclaim != nil {
			words += " and " + x.MinReclaim.String()
		}
		got = append(got, words)
	}
	const want = "memory.available 100Mi and 5Mi, nodefs.available 25%, memory.available 1Gi after 1m30s and 5Mi"
	if strings.Join(got, ", ") != want {
		t.Errorf("%s, want %s", strings.Join(got, ", "), want)
	}
	held, err := heldBack(cfg, 1<<30, 1000)
	if err != nil || held.Memory().Value() != 100<<20 || held.StorageEphemeral().Value() != 250 || len(held) != 2 {
		t.Errorf("held back are %v, %v", held, err)
	}
}
