package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
)

// floor gives a pod to the runtime with the requests that a node makes, and
// nothing else: no watch, no look at what came of them, no back-off. Its writes
// to the API server are as many as a node's, and go beside the runtime's work
// wherever nothing depends on them.
type floor struct {
	job     bareJob
	machine spec.Machine
	host    host.Host
	runtime *cri.Client
	client  kubernetes.Interface
	image   string
	ca      []byte
	late    sync.WaitGroup // writes that nobody waits for
}

// floorPod is a pod and what was made of it.
type floorPod struct {
	pod                *v1.Pod
	sandbox, container string
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
	f := &floor{job: job, host: h, machine: spec.Machine{
		RootDir: "/var/lib/kubelet", PodLogsDir: "/var/log/pods", CgroupDriver: "cgroupfs",
		CgroupVersion: facts.CgroupVersion, Owner: "bench", Hostname: facts.Hostname, HostIPs: []string{job.HostIP},
		MemoryBytes: facts.MemoryBytes, CPUs: facts.CPUs, CanLowerOOMScore: facts.CanLowerOOMScore,
		ClusterDomain: job.Domain, ClusterDNS: []string{job.DNS}, HostResolv: facts.ResolvConf, CPUCFSQuota: true,
	}}
	if f.client, err = newClient(job.Kubeconfig); err != nil {
		return nil, err
	}
	if f.runtime, err = dialRuntime(ctx, job.ContainerdSock); err != nil {
		return nil, err
	}
	img, err := f.runtime.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: pauseImage})
	if err != nil {
		return nil, err
	}
	if img == nil {
		return nil, fmt.Errorf("%s is not there", pauseImage)
	}
	f.image = img.Id
	ca, err := f.client.CoreV1().ConfigMaps(namespace).Get(ctx, "kube-root-ca.crt", metav1.GetOptions{})
	if err != nil {
		// A node's own credential may read it only for a pod of its own.
		f.ca = make([]byte, 1200)
		return f, nil
	}
	f.ca = []byte(ca.Data["ca.crt"])
	return f, nil
}

// volumeDir is where the pod's projected service account volume is made.
func (f *floor) volumeDir(p *v1.Pod) (name, dir string) {
	for _, v := range p.Spec.Volumes {
		if v.Projected != nil {
			return v.Name, spec.VolumeDir(f.machine.RootDir, p.UID, "kubernetes.io~projected", v.Name)
		}
	}
	return "", ""
}

// up makes the pod run and says that it is Ready.
func (f *floor) up(ctx context.Context, fp *floorPod) error {
	p := fp.pod
	for range f.job.PatchesUp - 1 {
		f.beside(ctx, fp, func(ctx context.Context) error { return f.patch(ctx, p, pendingStatus(p)) })
	}
	var mounts map[string]spec.VolumeMount
	volume := make(chan error, 1)
	go func() {
		var err error
		mounts, err = f.volumes(ctx, p)
		volume <- err
	}()
	err := f.makeSandbox(ctx, fp)
	if err = errors.Join(err, <-volume); err != nil {
		return err
	}
	st, err := f.runtime.PodSandboxStatus(ctx, fp.sandbox)
	if err != nil {
		return err
	}
	if err := f.startContainer(ctx, fp, st.GetNetwork().GetIp(), mounts); err != nil {
		return err
	}
	cs, err := f.runtime.ContainerStatus(ctx, fp.container)
	if err != nil {
		return err
	}
	for i := range f.job.EventsUp {
		f.event(ctx, p, fmt.Sprintf("up%d", i))
	}
	return f.patch(ctx, p, readyStatus(p, cs, st.GetNetwork().GetIp(), f.job.HostIP))
}

// volumes makes the pod's directory and its token volume.
func (f *floor) volumes(ctx context.Context, p *v1.Pod) (map[string]spec.VolumeMount, error) {
	name, dir := f.volumeDir(p)
	for _, d := range []string{spec.PodDir(f.machine.RootDir, p.UID), spec.ContainerDir(f.machine.RootDir, p.UID, "main")} {
		if err := f.host.MkdirAll(ctx, d, 0o750, nil); err != nil {
			return nil, err
		}
	}
	if name == "" {
		return nil, nil
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
			return nil, err
		}
	}
	if err := f.host.Mount(ctx, host.Mount{Source: "tmpfs", Target: dir, Type: "tmpfs", Options: []string{"size=64M"}}); err != nil {
		return nil, err
	}
	err := f.host.WriteTree(ctx, dir, host.Tree{
		"token": {Data: []byte(token), Mode: 0o644}, "ca.crt": {Data: f.ca, Mode: 0o644},
		"namespace": {Data: []byte(p.Namespace), Mode: 0o644},
	})
	return map[string]spec.VolumeMount{name: {HostPath: dir}}, err
}

func (f *floor) makeSandbox(ctx context.Context, fp *floorPod) error {
	p := fp.pod
	config, err := spec.Sandbox(p, f.machine, 0)
	if err != nil {
		return err
	}
	if err := f.host.MkdirAll(ctx, config.LogDirectory, 0o755, nil); err != nil {
		return err
	}
	if err := f.host.EnsureCgroup(ctx, spec.CgroupPath(p), host.CgroupResources(spec.PodCgroup(p, f.machine))); err != nil {
		return err
	}
	fp.sandbox, err = f.runtime.RunPodSandbox(ctx, config, "")
	return err
}

func (f *floor) startContainer(ctx context.Context, fp *floorPod, ip string, mounts map[string]spec.VolumeMount) error {
	p, c := fp.pod, &fp.pod.Spec.Containers[0]
	in := spec.ContainerInput{
		PodIPs: []string{ip}, ImageRef: f.image, Mounts: mounts,
		EtcHostsPath:       spec.EtcHostsPath(f.machine.RootDir, p.UID),
		TerminationLogPath: spec.TerminationLogPath(f.machine.RootDir, p.UID, c.Name, 0),
	}
	hosts, err := spec.HostsFile(p, f.machine, in.PodIPs, nil)
	if err != nil {
		return err
	}
	if err := f.host.WriteFile(ctx, in.EtcHostsPath, hosts, 0o644); err != nil {
		return err
	}
	if err := f.host.WriteFile(ctx, in.TerminationLogPath, nil, 0o666); err != nil {
		return err
	}
	if err := f.host.MkdirAll(ctx, path.Join(spec.LogDir(f.machine, p), c.Name), 0o755, nil); err != nil {
		return err
	}
	if in.Env, err = spec.Env(p, c, spec.EnvInput{}); err != nil {
		return err
	}
	config, err := spec.Container(p, c, f.machine, in)
	if err != nil {
		return err
	}
	sandbox, err := spec.Sandbox(p, f.machine, 0)
	if err != nil {
		return err
	}
	if fp.container, err = f.runtime.CreateContainer(ctx, fp.sandbox, config, sandbox); err != nil {
		return err
	}
	return f.runtime.StartContainer(ctx, fp.container)
}

// down ends the pod and takes its object away.
func (f *floor) down(ctx context.Context, fp *floorPod) error {
	p := fp.pod
	fp.written.Wait()
	for i := range f.job.EventsDown {
		f.event(ctx, p, fmt.Sprintf("down%d", i))
	}
	if err := f.runtime.StopContainer(ctx, fp.container, 30*time.Second); err != nil {
		return err
	}
	for range f.job.PatchesDown {
		f.beside(ctx, fp, func(ctx context.Context) error { return f.patch(ctx, p, pendingStatus(p)) })
	}
	if err := f.runtime.StopPodSandbox(ctx, fp.sandbox); err != nil {
		return err
	}
	if err := f.runtime.RemoveContainer(ctx, fp.container); err != nil {
		return err
	}
	if err := f.runtime.RemovePodSandbox(ctx, fp.sandbox); err != nil {
		return err
	}
	if _, dir := f.volumeDir(p); dir != "" {
		if err := f.host.Unmount(ctx, dir); err != nil {
			return err
		}
	}
	if err := f.host.RemoveTree(ctx, spec.PodDir(f.machine.RootDir, p.UID)); err != nil {
		return err
	}
	if err := f.host.RemoveCgroup(ctx, spec.CgroupPath(p)); err != nil {
		return err
	}
	fp.written.Wait()
	now := int64(0)
	return f.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{
		GracePeriodSeconds: &now, Preconditions: metav1.NewUIDPreconditions(string(p.UID))})
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
	f.late.Go(func() {
		now := metav1.Now()
		_, _ = f.client.CoreV1().Events(p.Namespace).Create(ctx, &v1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: string(p.UID) + "." + suffix, Namespace: p.Namespace},
			InvolvedObject: v1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
			Reason:         "Started", Message: "Container started", Type: v1.EventTypeNormal, Count: 1,
			Source: v1.EventSource{Component: "kubelet", Host: theHost}, FirstTimestamp: now, LastTimestamp: now,
		}, metav1.CreateOptions{}) // an event that is lost is no fault
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

// insist tries again while the API server's own caches lag behind a pod that it
// has just stored: its node authorizer and admission then deny knowing it.
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
