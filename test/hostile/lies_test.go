package hostile

import (
	"bytes"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/lying"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
)

// lie is one way to make the process spend resources.
type lie struct {
	name string
	// want lists the budgets one of which ends the lie. If empty, the lie stays within all of them,
	// and continues for a while.
	want []budget.Kind
	tell func(r *lying.Runtime, stamp string)
}

var lies = []lie{
	{"sandboxes of nothing, 8 MiB of them", []budget.Kind{budget.Items}, func(r *lying.Runtime, _ string) {
		r.Answer("ListPodSandbox", lying.Wire(bytes.Repeat([]byte{0x0a, 0}, 4<<20-4)))
		r.Answer("ListContainers", lying.Wire(bytes.Repeat([]byte{0x0a, 0}, 4<<20-4)))
	}},
	{"sandboxes of nothing, 16 MiB of them", []budget.Kind{budget.ReplyBytes}, func(r *lying.Runtime, _ string) {
		r.Answer("ListPodSandbox", lying.Wire(bytes.Repeat([]byte{0x0a, 0}, 8<<20-4)))
		r.Answer("ListContainers", lying.Wire(bytes.Repeat([]byte{0x0a, 0}, 8<<20-4)))
	}},
	{"a million pods", []budget.Kind{budget.Items, budget.ReplyBytes}, func(r *lying.Runtime, stamp string) {
		r.Answer("ListPodSandbox", lying.Message(&runtimeapi.ListPodSandboxResponse{Items: sandboxes(1_000_000, "")}))
	}},
	{"more pods with our stamp than a node has", []budget.Kind{budget.Pods}, func(r *lying.Runtime, stamp string) {
		r.Answer("ListPodSandbox", lying.Message(&runtimeapi.ListPodSandboxResponse{Items: sandboxes(5000, stamp)}))
	}},
	{"statuses of megabytes", []budget.Kind{budget.StatusBytes}, func(r *lying.Runtime, stamp string) {
		r.Answer("ListPodSandbox", lying.Message(&runtimeapi.ListPodSandboxResponse{Items: sandboxes(1000, stamp)}))
		r.Answer("PodSandboxStatus", lying.Message(&runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
			Id: "x", RuntimeHandler: strings.Repeat("x", 14<<20)}}))
	}},
	{"statuses that fill the memory", []budget.Kind{budget.Memory}, func(r *lying.Runtime, stamp string) {
		r.Answer("ListPodSandbox", lying.Message(&runtimeapi.ListPodSandboxResponse{Items: sandboxes(1000, stamp)}))
		r.Answer("PodSandboxStatus", lying.Message(&runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
			Id: "x", RuntimeHandler: strings.Repeat("x", 1000<<10)}}))
	}},
	{"lists and statuses within every limit", nil, func(r *lying.Runtime, stamp string) {
		items := sandboxes(1000, stamp)
		for i := range items {
			items[i].RuntimeHandler = strings.Repeat("y", 7<<10)
		}
		r.Answer("ListPodSandbox", lying.Message(&runtimeapi.ListPodSandboxResponse{Items: items}))
		containers := make([]*runtimeapi.Container, 16_000)
		for i := range containers {
			containers[i] = &runtimeapi.Container{Id: fmt.Sprint(i), ImageRef: strings.Repeat("z", 400)}
		}
		r.Answer("ListContainers", lying.Message(&runtimeapi.ListContainersResponse{Containers: containers}))
		r.Answer("PodSandboxStatus", lying.Message(&runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{
			Id: "x", RuntimeHandler: strings.Repeat("x", 12<<10)}}))
	}},
	{"events with IDs of 1,000 KiB", nil, func(r *lying.Runtime, _ string) {
		r.Answer("GetContainerEvents", func(send func([]byte) error, done <-chan struct{}) error {
			for i := 0; ; i++ {
				wire, err := proto.Marshal(&runtimeapi.ContainerEventResponse{ContainerId: fmt.Sprint(i, strings.Repeat("c", 1000<<10)),
					ContainerEventType: runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT})
				if err == nil {
					err = send(wire)
				}
				if err != nil {
					return err
				}
			}
		})
	}},
	{"allocations of two billion digits", nil, func(r *lying.Runtime, stamp string) {
		items := sandboxes(100, stamp)
		for i := range items {
			items[i].Annotations = map[string]string{pod.AnnotationAllocation: `{"containers":{"app":{"limits":{"cpu":"1e2000000000"}}}}`}
		}
		r.Answer("ListPodSandbox", lying.Message(&runtimeapi.ListPodSandboxResponse{Items: items}))
	}},
	{"replies that never end", nil, func(r *lying.Runtime, _ string) {
		for _, method := range []string{"ListPodSandbox", "ListContainers", "Status", "PodSandboxStatus", "ListImages"} {
			r.Answer(method, lying.Hang)
		}
	}},
}

// sandboxes returns ready sandboxes of pods that no API server has.
func sandboxes(n int, stamp string) []*runtimeapi.PodSandbox {
	all := make([]*runtimeapi.PodSandbox, n)
	for i := range all {
		name := fmt.Sprint("invented-", i)
		all[i] = &runtimeapi.PodSandbox{Id: name}
		if stamp != "" {
			all[i].Labels = map[string]string{pod.LabelPodUID: name, pod.LabelPodNamespace: "default", pod.LabelPodName: name, pod.LabelOwner: stamp}
		}
	}
	return all
}

// honest answers a node's ordinary calls, so that the process reaches the call that lies. The runtime
// has no events: the lists are asked for every second.
func honest(r *lying.Runtime) {
	r.Answer("GetContainerEvents", nil)
	on := []*runtimeapi.RuntimeCondition{{Type: "RuntimeReady", Status: true}, {Type: "NetworkReady", Status: true}}
	for method, reply := range map[string]proto.Message{
		"Version":            &runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: "containerd", RuntimeVersion: "2.0.0", RuntimeApiVersion: "v1"},
		"Status":             &runtimeapi.StatusResponse{Status: &runtimeapi.RuntimeStatus{Conditions: on}},
		"ListPodSandbox":     &runtimeapi.ListPodSandboxResponse{},
		"ListContainers":     &runtimeapi.ListContainersResponse{},
		"ListContainerStats": &runtimeapi.ListContainerStatsResponse{},
		"ListImages":         &runtimeapi.ListImagesResponse{},
		"ImageFsInfo":        &runtimeapi.ImageFsInfoResponse{},
		"PodSandboxStatus":   &runtimeapi.PodSandboxStatusResponse{Status: &runtimeapi.PodSandboxStatus{Id: "x"}},
		"StopPodSandbox":     &runtimeapi.StopPodSandboxResponse{},
		"RemovePodSandbox":   &runtimeapi.RemovePodSandboxResponse{},
	} {
		r.Answer(method, lying.Message(reply))
	}
}
