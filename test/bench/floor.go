package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/syncloop/startlimiter"
)

// floor replays the requests that were recorded for a pod of the same name to the runtime, and
// nothing else: no watch, no decision, no back-off. It makes as many writes to the API server as a
// node, concurrently with the runtime's work if nothing depends on them.
type floor struct {
	job     bareJob
	tape    tape
	machine spec.Machine
	host    host.Host
	runtime *grpc.ClientConn
	client  kubernetes.Interface
	ca      []byte
	starts  *startlimiter.Limiter
	// Removals run one at a time beside the stops, as in Bowline.
	removals *startlimiter.Limiter
	late     sync.WaitGroup // writes that no step waits for
}

// floorPod is a pod and its sandbox, container and status.
type floorPod struct {
	pod                *v1.Pod
	sandbox, container string
	ip                 string
	status             []byte // the container's last status, as the runtime reported it
	written            sync.WaitGroup
}

func newFloor(ctx context.Context, job bareJob) (*floor, error) {
	h, err := local.New(local.Config{Name: "bench"})
	if err != nil {
		return nil, err
	}
	facts, err := h.Facts(ctx)
	if err != nil {
		return nil, err
	}
	f := &floor{job: job, host: h, starts: startlimiter.New(job.Concurrency, time.Minute), removals: startlimiter.New(facts.CPUs/2, time.Minute), machine: spec.Machine{
		RootDir: "/var/lib/kubelet", PodLogsDir: "/var/log/pods", CgroupDriver: "cgroupfs",
		CgroupVersion: facts.CgroupVersion, Owner: "bench", Hostname: facts.Hostname, HostIPs: []string{job.HostIP},
		MemoryBytes: facts.MemoryBytes, CPUs: facts.CPUs, CanLowerOOMScore: facts.CanLowerOOMScore,
		ClusterDomain: job.Domain, ClusterDNS: []string{job.DNS}, HostResolv: facts.ResolvConf, CPUCFSQuota: true,
	}}
	text, err := os.ReadFile(job.Tape)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, &f.tape); err != nil {
		return nil, err
	}
	if f.client, err = newClient(job.Kubeconfig); err != nil {
		return nil, err
	}
	if f.runtime, err = dialRaw(containerdSocket); err != nil {
		return nil, err
	}
	ca, err := f.client.CoreV1().ConfigMaps(namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		// A node's own credential may read the configMap only for a pod of its own.
		f.ca = make([]byte, 1200)
		return f, nil
	}
	f.ca = []byte(ca.Data["ca.crt"])
	return f, nil
}

// play sends recorded requests one after the other, with the names of fp's pod.
func (f *floor) play(ctx context.Context, fp *floorPod, calls []recorded) error {
	p := f.tape[fp.pod.Name]
	for _, c := range calls {
		method := path.Base(c.Method)
		if method == "CreateContainer" {
			if err := f.files(ctx, fp); err != nil {
				return err
			}
		}
		request, err := p.names(c.Request, fp)
		if err != nil {
			return err
		}
		var reply []byte
		if err := f.runtime.Invoke(ctx, c.Method, &request, &reply); err != nil {
			return fmt.Errorf("%s: %w", method, err)
		}
		if err := fp.learn(method, reply); err != nil {
			return fmt.Errorf("reply of %s: %w", method, err)
		}
	}
	return nil
}

// learn keeps the parts of a reply that later requests, files and statuses need.
func (fp *floorPod) learn(method string, reply []byte) error {
	switch method {
	case "RunPodSandbox":
		var r runtimeapi.RunPodSandboxResponse
		err := proto.Unmarshal(reply, &r)
		fp.sandbox = r.PodSandboxId
		return err
	case "PodSandboxStatus":
		var r runtimeapi.PodSandboxStatusResponse
		err := proto.Unmarshal(reply, &r)
		fp.ip = r.GetStatus().GetNetwork().GetIp()
		return err
	case "CreateContainer":
		var r runtimeapi.CreateContainerResponse
		err := proto.Unmarshal(reply, &r)
		fp.container = r.ContainerId
		return err
	case "ContainerStatus":
		fp.status = reply
	}
	return nil
}

func volumeOf(p *v1.Pod) (name string, ok bool) {
	for _, v := range p.Spec.Volumes {
		if v.Projected != nil {
			return v.Name, true
		}
	}
	return "", false
}

// volumeDir is the directory of the pod's projected service account volume.
func (f *floor) volumeDir(p *v1.Pod) (dir string, ok bool) {
	name, ok := volumeOf(p)
	return spec.VolumeDir(f.machine.RootDir, p.UID, "kubernetes.io~projected", name), ok
}

// up starts the pod and reports it Ready. It makes the volume concurrently with the sandbox, as a
// node does.
func (f *floor) up(ctx context.Context, fp *floorPod) error {
	p := fp.pod
	for range f.job.PatchesUp - 1 {
		f.beside(ctx, fp, func(ctx context.Context) error { return f.patch(ctx, p, pendingStatus(p)) })
	}
	calls := f.tape[p.Name]
	if calls == nil {
		return errors.New("nothing was recorded for it")
	}
	first := slices.IndexFunc(calls.Up, func(c recorded) bool { return path.Base(c.Method) == "RunPodSandbox" }) + 1
	volume := make(chan error, 1)
	go func() { volume <- f.volumes(ctx, p) }()
	err := f.sandboxFiles(ctx, p)
	if err == nil {
		err = f.play(ctx, fp, calls.Up[:first])
	}
	if err = errors.Join(err, <-volume); err != nil {
		return err
	}
	if err := f.play(ctx, fp, calls.Up[first:]); err != nil {
		return err
	}
	var cs runtimeapi.ContainerStatusResponse
	if err := proto.Unmarshal(fp.status, &cs); err != nil {
		return err
	}
	for i := range f.job.EventsUp {
		f.event(ctx, p, fmt.Sprintf("up%d", i))
	}
	return f.patch(ctx, p, readyStatus(p, cs.GetStatus(), fp.ip, f.job.HostIP))
}

// volumes makes the pod's directories and its token volume.
func (f *floor) volumes(ctx context.Context, p *v1.Pod) error {
	for _, d := range []string{spec.PodDir(f.machine.RootDir, p.UID), spec.ContainerDir(f.machine.RootDir, p.UID, "main")} {
		if err := f.host.MkdirAll(ctx, d, 0o750, nil); err != nil {
			return err
		}
	}
	dir, ok := f.volumeDir(p)
	if !ok {
		return nil
	}
	var token string
	for range f.job.Tokens {
		seconds := int64(3607)
		err := insist(ctx, func() error {
			reply, err := f.client.CoreV1().ServiceAccounts(p.Namespace).CreateToken(ctx, p.Spec.ServiceAccountName, &authenticationv1.TokenRequest{
				Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds, BoundObjectRef: &authenticationv1.BoundObjectReference{
					Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID}},
			}, metav1.CreateOptions{})
			if err == nil {
				token = reply.Status.Token
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	if err := f.host.Mount(ctx, host.Mount{Source: "tmpfs", Target: dir, Type: "tmpfs", Options: []string{"size=64M"}}); err != nil {
		return err
	}
	return f.host.WriteTree(ctx, dir, host.Tree{
		"token": {Data: []byte(token), Mode: 0o644}, "ca.crt": {Data: f.ca, Mode: 0o644},
		"namespace": {Data: []byte(p.Namespace), Mode: 0o644},
	})
}

// sandboxFiles makes the directories and the cgroup that a sandbox needs.
func (f *floor) sandboxFiles(ctx context.Context, p *v1.Pod) error {
	if err := f.host.MkdirAll(ctx, spec.LogDir(f.machine, p), 0o755, nil); err != nil {
		return err
	}
	return f.host.EnsureCgroup(ctx, spec.CgroupPath(p, f.machine), host.CgroupResources(spec.PodCgroup(p, f.machine)))
}

// files writes the files that the container's mounts name, and makes its log directory.
func (f *floor) files(ctx context.Context, fp *floorPod) error {
	p := fp.pod
	hosts, err := spec.HostsFile(p, f.machine, []string{fp.ip}, nil)
	if err != nil {
		return err
	}
	if err := f.host.WriteFile(ctx, spec.EtcHostsPath(f.machine.RootDir, p.UID), hosts, 0o644); err != nil {
		return err
	}
	if err := f.host.WriteFile(ctx, spec.TerminationLogPath(f.machine.RootDir, p.UID, "main", 0), nil, 0o666); err != nil {
		return err
	}
	return f.host.MkdirAll(ctx, path.Join(spec.LogDir(f.machine, p), "main"), 0o755, nil)
}

// down stops the pod, deletes its object, and then removes the rest of it.
func (f *floor) down(ctx context.Context, fp *floorPod) error {
	p, calls := fp.pod, f.tape[fp.pod.Name]
	fp.written.Wait()
	for i := range f.job.EventsDown {
		f.event(ctx, p, fmt.Sprintf("down%d", i))
	}
	for range f.job.PatchesDown {
		f.beside(ctx, fp, func(ctx context.Context) error { return f.patch(ctx, p, pendingStatus(p)) })
	}
	if err := f.play(ctx, fp, calls.Down); err != nil {
		return err
	}
	var mounted []string
	if dir, ok := f.volumeDir(p); ok {
		mounted = append(mounted, dir)
	}
	if err := f.host.RemoveTree(ctx, spec.PodDir(f.machine.RootDir, p.UID), mounted...); err != nil {
		return err
	}
	if err := f.host.RemoveCgroup(ctx, spec.CgroupPath(p, f.machine), false); err != nil {
		return err
	}
	fp.written.Wait()
	now := int64(0)
	err := f.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
	if err != nil {
		return err
	}
	f.late.Go(func() {
		ctx := context.WithoutCancel(ctx)
		done, err := f.removals.Take(ctx, false)
		if err == nil {
			err = f.play(ctx, fp, calls.After)
			done()
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "bench: bare CRI: %s: %v\n", p.Name, err)
		}
	})
	return nil
}

// beside makes a write that the pod's next step does not wait for.
func (f *floor) beside(ctx context.Context, fp *floorPod, do func(context.Context) error) {
	ctx = context.WithoutCancel(ctx)
	fp.written.Go(func() {
		if err := do(ctx); err != nil {
			fmt.Printf("bench: bare CRI: %s: %v\n", fp.pod.Name, err)
		}
	})
}

func (f *floor) event(ctx context.Context, p *v1.Pod, suffix string) {
	ctx = context.WithoutCancel(ctx)
	now := metav1.Now()
	f.late.Go(func() {
		select { // as Bowline's events yield to starts
		case <-f.starts.Quiet():
		case <-time.After(5 * time.Second):
		}
		_, _ = f.client.CoreV1().Events(p.Namespace).Create(ctx, &v1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: string(p.UID) + "." + suffix, Namespace: p.Namespace},
			InvolvedObject: v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
			Reason:         "Started", Message: "Container started", Type: v1.EventTypeNormal, Count: 1,
			Source: v1.EventSource{Component: "kubelet", Host: theHost}, FirstTimestamp: now, LastTimestamp: now,
		}, metav1.CreateOptions{}) // losing an event is no error
	})
}

func (f *floor) patch(ctx context.Context, p *v1.Pod, st v1.PodStatus) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": st})
	if err != nil {
		return err
	}
	return insist(ctx, func() error {
		_, err := f.client.CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
		return err
	})
}

// insist retries while the API server's caches lag behind a pod that it has just stored: until
// then, its node authorizer and admission do not know the pod.
func insist(ctx context.Context, do func() error) error {
	for {
		err := do()
		if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func conditions(ready v1.ConditionStatus, types ...v1.PodConditionType) []v1.PodCondition {
	var out []v1.PodCondition
	for _, t := range types {
		out = append(out, v1.PodCondition{Type: t, Status: ready, LastTransitionTime: metav1.Now()})
	}
	return out
}

// pendingStatus differs each time, so that every patch is a write.
func pendingStatus(p *v1.Pod) v1.PodStatus {
	return v1.PodStatus{
		Phase: p.Status.Phase, Message: time.Now().Format(time.RFC3339Nano),
		Conditions: conditions(v1.ConditionFalse, v1.PodReadyToStartContainers, v1.ContainersReady),
		ContainerStatuses: []v1.ContainerStatus{{Name: "main", Image: pauseImage,
			State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ContainerCreating"}}}},
	}
}

func readyStatus(p *v1.Pod, cs *runtimeapi.ContainerStatus, ip, hostIP string) v1.PodStatus {
	started := true
	return v1.PodStatus{
		Phase: v1.PodRunning, HostIP: hostIP, HostIPs: []v1.HostIP{{IP: hostIP}}, PodIP: ip, PodIPs: []v1.PodIP{{IP: ip}},
		Conditions: conditions(v1.ConditionTrue, v1.PodReadyToStartContainers, v1.PodInitialized, v1.PodReady, v1.ContainersReady, v1.PodScheduled),
		ContainerStatuses: []v1.ContainerStatus{{
			Name: "main", Image: pauseImage, ImageID: cs.GetImageRef(), ContainerID: "containerd://" + cs.GetId(),
			Ready: true, Started: &started,
			State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.NewTime(time.Unix(0, cs.GetStartedAt()))}},
		}},
	}
}
