package main

import (
	"bytes"
	"cmp"
	"fmt"
	"path"
	"slices"

	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// tape holds Bowline's requests to the runtime for each pod of a wave, by the pod's name. Requests
// that name no pod, such as relists, are not on it.
type tape map[string]*take

// take is one pod's part of a tape. Up, Down and After are in the order in which they were sent;
// the API object is deleted between Down and After.
type take struct {
	UID, Volume        string // the pod's UID, and its token volume's name
	Sandbox, Container string // IDs
	Up, Down, After    []recorded
}

// newTape sorts calls by pod. It fails unless the recording has the whole life of every one of n
// pods.
func newTape(calls []recorded, n int) (tape, error) {
	slices.SortStableFunc(calls, func(a, b recorded) int { return a.At.Compare(b.At) })
	t := tape{}
	for _, c := range calls {
		if path.Base(c.Method) == "RunPodSandbox" {
			if err := t.add(c); err != nil {
				return nil, err
			}
		}
	}
	for _, c := range calls {
		p := t.of(c)
		if p == nil {
			continue
		}
		switch method := path.Base(c.Method); {
		case method == "CreateContainer":
			if err := p.created(c); err != nil {
				return nil, err
			}
			p.Up = append(p.Up, c)
		case p.After != nil, method == "RemoveContainer", method == "RemovePodSandbox":
			p.After = append(p.After, c)
		case p.Down != nil, method == "StopContainer":
			p.Down = append(p.Down, c)
		default:
			p.Up = append(p.Up, c)
		}
	}
	if len(t) != n {
		return nil, fmt.Errorf("the recording has %d pods, not %d", len(t), n)
	}
	for name, p := range t {
		for _, method := range []string{"RunPodSandbox", "CreateContainer", "StartContainer", "StopContainer", "StopPodSandbox", "RemoveContainer", "RemovePodSandbox"} {
			if p.count(method) != 1 {
				return nil, fmt.Errorf("the recording has %d calls of %s for pod %s, not one", p.count(method), method, name)
			}
		}
	}
	return t, nil
}

func (t tape) add(c recorded) error {
	var request runtimeapi.RunPodSandboxRequest
	var reply runtimeapi.RunPodSandboxResponse
	if err := proto.Unmarshal(c.Request, &request); err != nil {
		return err
	}
	if err := proto.Unmarshal(c.Reply, &reply); err != nil {
		return err
	}
	meta := request.GetConfig().GetMetadata()
	if meta.GetNamespace() == namespace {
		t[meta.GetName()] = &take{UID: meta.GetUid(), Sandbox: reply.GetPodSandboxId()}
	}
	return nil
}

// of returns the pod that a call names by its UID or an ID.
func (t tape) of(c recorded) *take {
	for _, p := range t {
		for _, name := range []string{p.UID, p.Sandbox, p.Container} {
			if name != "" && bytes.Contains(c.Request, []byte(name)) {
				return p
			}
		}
	}
	return nil
}

func (p *take) created(c recorded) error {
	var request runtimeapi.CreateContainerRequest
	var reply runtimeapi.CreateContainerResponse
	if err := proto.Unmarshal(c.Request, &request); err != nil {
		return err
	}
	if err := proto.Unmarshal(c.Reply, &reply); err != nil {
		return err
	}
	p.Container = reply.GetContainerId()
	for _, m := range request.GetConfig().GetMounts() {
		if m.ContainerPath == "/var/run/secrets/kubernetes.io/serviceaccount" {
			p.Volume = path.Base(m.HostPath)
		}
	}
	return nil
}

func (p *take) count(method string) (n int) {
	for _, part := range [][]recorded{p.Up, p.Down, p.After} {
		for _, c := range part {
			if path.Base(c.Method) == method {
				n++
			}
		}
	}
	return n
}

// perPod returns the median number of calls per pod, up and down.
func (t tape) perPod() (up, down int) {
	var ups, downs []int
	for _, p := range t {
		ups, downs = append(ups, len(p.Up)), append(downs, len(p.Down)+len(p.After))
	}
	slices.SortFunc(ups, cmp.Compare[int])
	slices.SortFunc(downs, cmp.Compare[int])
	if len(ups) == 0 {
		return 0, 0
	}
	return ups[len(ups)/2], downs[len(downs)/2]
}

// names replaces the recorded pod's names with those of fp. Each name is as long as the one that it
// replaces, so that the message around it stays valid.
func (p *take) names(message []byte, fp *floorPod) ([]byte, error) {
	volume, _ := volumeOf(fp.pod)
	for _, pair := range [][2]string{
		{p.UID, string(fp.pod.UID)}, {p.Volume, volume}, {p.Sandbox, fp.sandbox}, {p.Container, fp.container},
	} {
		if pair[0] == "" || pair[1] == "" {
			continue // not made yet: nothing names it
		}
		if len(pair[0]) != len(pair[1]) {
			return nil, fmt.Errorf("%q cannot stand for the recorded %q", pair[1], pair[0])
		}
		message = bytes.ReplaceAll(message, []byte(pair[0]), []byte(pair[1]))
	}
	return message, nil
}
