package syncloop

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/lifecycle"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// start creates the container, starts it and runs its postStart hook. Its image is present.
func (j *job) start(ctx context.Context, out *plan.Outcome) error {
	c := pod.Find(pod.AllContainers(&j.pod.Spec), j.op.Container)
	if c == nil {
		return fmt.Errorf("the pod has no container %q", j.op.Container)
	}
	sandbox := sandboxOf(j.observed, j.op.ID)
	if sandbox == nil || j.image == nil {
		return errors.New("its sandbox or image is gone")
	}
	if err := j.mapUsers(""); err != nil {
		return because(plan.ReasonConfig, err)
	}
	in, err := j.containerInput(ctx, c, *j.image)
	if err != nil {
		return because(plan.ReasonConfig, err)
	}
	m := j.machine()
	config, err := spec.Container(j.pod, c, m, in)
	if err != nil {
		return because(plan.ReasonConfig, err)
	}
	sandboxConfig, err := spec.Sandbox(j.pod, m, sandbox.Attempt)
	if err != nil {
		return err
	}
	done, err := j.loop.starts.Take(ctx, true)
	if err != nil {
		return err
	}
	defer done()
	id, err := j.loop.cfg.Runtime.CreateContainer(ctx, sandbox.ID, config, sandboxConfig)
	j.loop.cfg.Metrics.mountedImages(len(j.image.volumes), err)
	if err != nil {
		return because("CreateContainerError", err)
	}
	out.ContainerID = id
	j.loop.event(j.pod, c.Name, v1.EventTypeNormal, "Created", "Container created")
	linked := make(chan struct{}) // concurrently with the start, as it is a round trip
	go func() {
		defer budget.From(ctx).Recover("link a container's log")
		defer close(linked)
		j.linkLog(ctx, m, c.Name, id)
	}()
	err = j.startContainer(ctx, id)
	<-linked
	if err != nil {
		if cri.IsUnsent(err) {
			out.ContainerID = "" // it was created and has certainly not run
		}
		return because("RunContainerError", err)
	}
	done() // before the hook, which may take long
	j.loop.event(j.pod, c.Name, v1.EventTypeNormal, "Started", "Container started")
	return j.postStart(ctx, c, id, out)
}

// startContainer starts a container. A start that has begun is not cut off when the process stops.
func (j *job) startContainer(ctx context.Context, id string) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	call, done := settled(ctx)
	defer done()
	return j.loop.cfg.Runtime.StartContainer(call, id)
}

// containerInput collects the input of the container's config: it resolves the environment, and
// creates the files that the container mounts from the pod's directory.
func (j *job) containerInput(ctx context.Context, c *v1.Container, img pulled) (in spec.ContainerInput, err error) {
	m := j.machine()
	env, err := j.environment(ctx, c)
	if err != nil {
		return in, err
	}
	in = spec.ContainerInput{
		Attempt: j.op.Attempt, Crashes: j.op.Crashes, PodIPs: j.podIPs,
		ImageRef: img.Ref, ImageUser: spec.UserOf(img.Image), Env: env,
		TerminationLogPath: spec.TerminationLogPath(m.RootDir, j.pod.UID, c.Name, j.op.Attempt),
	}
	if in.TargetID, err = j.target(c.Name); err != nil {
		return in, err
	}
	if in.Mounts, in.SubPaths, err = j.mounts(ctx, c, env, img.volumes); err != nil {
		return in, err
	}
	if in.Devices, err = j.devices(c); err != nil {
		return in, err
	}
	entries := []host.Entry{
		{Path: path.Join(spec.LogDir(m, j.pod), c.Name), Mode: fs.ModeDir | 0o755},
		{Path: in.TerminationLogPath, Mode: 0o666}, // any user of the container may write its termination message
	}
	if hosts, ok, err := j.hosts(ctx, c, m); err != nil {
		return in, err
	} else if ok {
		in.EtcHostsPath = hosts.Path
		entries = append(entries, hosts)
	}
	if _, err := j.loop.cfg.Host.Make(ctx, entries...); err != nil {
		return in, fmt.Errorf("make the container's log directory, its termination message file and its /etc/hosts: %w", err)
	}
	return in, nil
}

// target returns the ID of the container whose processes the ephemeral container is to see
// (targetContainerName), or "".
func (j *job) target(name string) (string, error) {
	for i := range j.pod.Spec.EphemeralContainers {
		e := &j.pod.Spec.EphemeralContainers[i]
		if e.Name != name || e.TargetContainerName == "" {
			continue
		}
		if c := j.observed.Newest(e.TargetContainerName); c != nil {
			return c.ID, nil
		}
		return "", fmt.Errorf("unable to find target container %q", e.TargetContainerName)
	}
	return "", nil
}

// mounts returns the host paths of the pod's volumes by name, and those of the container's subPath
// mounts by index.
func (j *job) mounts(ctx context.Context, c *v1.Container, env []spec.EnvVar, images map[string]*runtimeapi.ImageSpec) (map[string]spec.VolumeMount, map[int]string, error) {
	volumes := j.loop.cfg.Volumes.Mounts(j.pod.UID)
	mounts := make(map[string]spec.VolumeMount, len(volumes))
	for name, v := range volumes {
		mounts[name] = spec.VolumeMount{HostPath: v.HostPath, ReadOnly: v.ReadOnly, SELinux: v.SELinux, Image: images[name]}
	}
	parts, err := spec.SubPaths(c, env)
	if err != nil {
		return nil, nil, err
	}
	paths := make(map[int]string, len(parts))
	for _, part := range parts {
		if mounts[part.Volume].Image != nil {
			continue // the runtime resolves a subPath of an image
		}
		p, err := j.loop.cfg.Volumes.SubPath(ctx, j.pod, c.Name, part.Index, &c.VolumeMounts[part.Index], part.Path)
		if err != nil {
			return nil, nil, err
		}
		paths[part.Index] = p
	}
	return mounts, paths, nil
}

// devices returns the block volumes that the container uses.
func (j *job) devices(c *v1.Container) ([]*runtimeapi.Device, error) {
	var out []*runtimeapi.Device
	for _, d := range c.VolumeDevices {
		v := j.loop.cfg.Volumes.Mounts(j.pod.UID)[d.Name]
		switch {
		case !path.IsAbs(d.DevicePath):
			return nil, fmt.Errorf("error DevicePath `%s` must be an absolute path", d.DevicePath)
		case v.Device == "":
			return nil, fmt.Errorf("cannot find volume %q to pass into container %q", d.Name, c.Name)
		}
		device := &runtimeapi.Device{HostPath: v.Device, ContainerPath: d.DevicePath, Permissions: "mrw"}
		if v.ReadOnly {
			device.Permissions = "r"
		}
		out = append(out, device)
	}
	return out, nil
}

// linkLog makes the link in /var/log/containers that log collectors read. The container runs even
// if that fails.
func (j *job) linkLog(ctx context.Context, m spec.Machine, name, id string) {
	target := path.Join(spec.LogDir(m, j.pod), spec.LogPath(name, j.op.Attempt))
	link := path.Join(j.loop.cfg.ContainerLogsDir, spec.LogLink(j.pod, name, id))
	if err := j.loop.cfg.Host.Symlink(ctx, target, link); err != nil && ctx.Err() == nil {
		j.loop.event(j.pod, name, v1.EventTypeWarning, "FailedLogLink", err.Error())
	}
}

// hook runs a postStart hook that was interrupted.
func (j *job) hook(ctx context.Context, out *plan.Outcome) error {
	c := pod.Find(pod.AllContainers(&j.pod.Spec), j.op.Container)
	if c == nil {
		return fmt.Errorf("the pod has no container %q", j.op.Container)
	}
	out.ContainerID = j.op.ID
	return j.postStart(ctx, c, j.op.ID, out)
}

// postStart runs the hook. The planner stops a container whose hook has failed, as a kubelet does.
func (j *job) postStart(ctx context.Context, c *v1.Container, id string, out *plan.Outcome) error {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		out.Hooked = true
		return nil
	}
	message, err := j.loop.cfg.Hooks.Run(ctx, j.pod, id, c, c.Lifecycle.PostStart, first(j.podIPs))
	if err == nil {
		out.Hooked = true
		return nil
	}
	var failure *lifecycle.Error
	if ctx.Err() != nil || errors.As(err, &failure) && failure.Transport {
		out.Transport = true // it is unknown whether it ran; it is run again
		return err
	}
	out.Hooked = true
	j.loop.event(j.pod, c.Name, v1.EventTypeWarning, "FailedPostStartHook", message)
	return because(postStartHookError, err)
}

// postStartHookError is the reason of a container whose postStart hook failed.
const postStartHookError = "PostStartHookError"

func sandboxOf(o pod.Observed, id string) *pod.Sandbox {
	for i := range o.Sandboxes {
		if o.Sandboxes[i].ID == id {
			return &o.Sandboxes[i]
		}
	}
	return nil
}

func readySandbox(o pod.Observed) *pod.Sandbox {
	for i := range o.Sandboxes {
		if o.Sandboxes[i].Ready {
			return &o.Sandboxes[i]
		}
	}
	return nil
}

// graceOf returns the pod's grace period: at least a second, as a kubelet gives, even if the API
// says zero. Stopping a container has a minimum of its own (minimumStop).
func graceOf(p *v1.Pod) time.Duration {
	seconds := int64(v1.DefaultTerminationGracePeriodSeconds)
	if g := p.DeletionGracePeriodSeconds; g != nil {
		seconds = *g
	} else if g := p.Spec.TerminationGracePeriodSeconds; g != nil {
		seconds = *g
	}
	return time.Duration(max(seconds, 1)) * time.Second
}

func first(ips []string) string {
	if len(ips) == 0 {
		return ""
	}
	return ips[0]
}
