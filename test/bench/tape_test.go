package main

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

func id(c string) string { return strings.Repeat(c, 64) }

// oneLife returns a proxy's recording of one pod, and of calls that belong to no pod.
func oneLife(t *testing.T, name, uid, sandbox, container string) []recorded {
	t.Helper()
	at := time.Unix(1000, 0)
	var calls []recorded
	add := func(method string, request, reply proto.Message) {
		in, err := proto.Marshal(request)
		testutil.Must(t, err)
		out, err := proto.Marshal(reply)
		testutil.Must(t, err)
		at = at.Add(time.Millisecond)
		calls = append(calls, recorded{Method: "/runtime.v1.RuntimeService/" + method, At: at, Request: in, Reply: out})
	}
	look := func() {
		add("ListContainers", &runtimeapi.ListContainersRequest{Filter: &runtimeapi.ContainerFilter{
			LabelSelector: map[string]string{"io.kubernetes.pod.uid": uid}}}, &runtimeapi.ListContainersResponse{})
	}
	config := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Namespace: namespace, Name: name, Uid: uid}}
	add("RunPodSandbox", &runtimeapi.RunPodSandboxRequest{Config: config}, &runtimeapi.RunPodSandboxResponse{PodSandboxId: sandbox})
	look()
	add("ListContainers", &runtimeapi.ListContainersRequest{}, &runtimeapi.ListContainersResponse{}) // a relist
	add("CreateContainer", &runtimeapi.CreateContainerRequest{PodSandboxId: sandbox, Config: &runtimeapi.ContainerConfig{
		Mounts: []*runtimeapi.Mount{{ContainerPath: "/var/run/secrets/kubernetes.io/serviceaccount", HostPath: "/pods/" + uid + "/kube-api-access-aaaaa"}},
	}, SandboxConfig: config}, &runtimeapi.CreateContainerResponse{ContainerId: container})
	add("StartContainer", &runtimeapi.StartContainerRequest{ContainerId: container}, &runtimeapi.StartContainerResponse{})
	add("StopContainer", &runtimeapi.StopContainerRequest{ContainerId: container}, &runtimeapi.StopContainerResponse{})
	look()
	add("StopPodSandbox", &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox}, &runtimeapi.StopPodSandboxResponse{})
	add("RemoveContainer", &runtimeapi.RemoveContainerRequest{ContainerId: container}, &runtimeapi.RemoveContainerResponse{})
	look()
	add("RemovePodSandbox", &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox}, &runtimeapi.RemovePodSandboxResponse{})
	return calls
}

func TestTapeSortsCallsByPod(t *testing.T) {
	calls := append(oneLife(t, "p000", "uid-0", id("a"), id("b")), oneLife(t, "p001", "uid-1", id("c"), id("d"))...)
	tape, err := newTape(calls, 2)
	testutil.Must(t, err)
	methods := func(calls []recorded) (out []string) {
		for _, c := range calls {
			out = append(out, path.Base(c.Method))
		}
		return out
	}
	for _, name := range []string{"p000", "p001"} {
		p := tape[name]
		got := fmt.Sprint(methods(p.Up), methods(p.Down), methods(p.After))
		want := "[RunPodSandbox ListContainers CreateContainer StartContainer] [StopContainer ListContainers StopPodSandbox] [RemoveContainer ListContainers RemovePodSandbox]"
		if got != want {
			t.Errorf("%s: %s\nwant %s", name, got, want)
		}
		if p.Volume != "kube-api-access-aaaaa" {
			t.Errorf("%s: volume %q", name, p.Volume)
		}
	}
	if up, down := tape.perPod(); up != 4 || down != 6 {
		t.Errorf("%d up, %d down", up, down)
	}
}

func TestTapeWantsWholeLives(t *testing.T) {
	calls := oneLife(t, "p000", "uid-0", id("a"), id("b"))
	for i, c := range calls {
		method := path.Base(c.Method)
		if method == "ListContainers" {
			continue
		}
		if _, err := newTape(slices.Delete(slices.Clone(calls), i, i+1), 1); err == nil {
			t.Errorf("a recording without %s was taken", method)
		}
	}
	if _, err := newTape(calls, 2); err == nil {
		t.Error("a recording without the second pod was taken")
	}
}

func TestTapePutsNewNamesIn(t *testing.T) {
	tape, err := newTape(oneLife(t, "p000", "uid-0", id("a"), id("b")), 1)
	testutil.Must(t, err)
	p := tape["p000"]
	fp := &floorPod{sandbox: id("e"), pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p000", UID: types.UID("uid-9")},
		Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "kube-api-access-zzzzz", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{}}}}}}}
	i := slices.IndexFunc(p.Up, func(c recorded) bool { return path.Base(c.Method) == "CreateContainer" })
	message, err := p.names(p.Up[i].Request, fp)
	testutil.Must(t, err)
	var got runtimeapi.CreateContainerRequest
	testutil.Must(t, proto.Unmarshal(message, &got))
	if got.PodSandboxId != id("e") || got.SandboxConfig.Metadata.Uid != "uid-9" || got.Config.Mounts[0].HostPath != "/pods/uid-9/kube-api-access-zzzzz" {
		t.Errorf("the request names %v", &got)
	}
	fp.pod.UID = "longer than it was"
	if _, err := p.names(p.Up[i].Request, fp); err == nil {
		t.Error("a name of another length was put into a message")
	}
}
