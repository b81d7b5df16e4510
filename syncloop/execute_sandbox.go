package syncloop

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/syncloop/admit"
)

// prepareVolumes makes the pod's directories on the host and everything that its containers mount.
func (j *job) prepareVolumes(ctx context.Context) error {
	_, err := j.loop.cfg.Volumes.Prepare(ctx, j.pod)
	var r *admit.Rejection
	if errors.As(err, &r) {
		j.loop.reject(j.pod, r)
	}
	return err
}

// claimsError is the error for a pod with resource claims. No part of this node prepares the
// claimed devices, so the pod would start without them.
type claimsError struct{ claims []string }

func (e *claimsError) Error() string {
	return "this node does not support dynamic resource allocation, but the pod has the resource claims " +
		strings.Join(e.claims, ", ") + ": run it on a node with a kubelet"
}

// withoutClaims returns an error if the pod has resource claims: in its spec, or one that the
// scheduler made for its extended resources.
func withoutClaims(p *v1.Pod) error {
	var claims []string
	for i := range p.Spec.ResourceClaims {
		claims = append(claims, p.Spec.ResourceClaims[i].Name)
	}
	if s := p.Status.ExtendedResourceClaimStatus; s != nil {
		claims = append(claims, s.ResourceClaimName)
	}
	if len(claims) == 0 {
		return nil
	}
	return &claimsError{claims}
}

// runSandbox makes the log directory and the pod's cgroup, then runs the sandbox.
func (j *job) runSandbox(ctx context.Context) error {
	if err := withoutClaims(j.pod); err != nil {
		return err
	}
	handler, err := j.loop.handler(ctx, j.pod)
	if err != nil {
		return err
	}
	if err := j.mapUsers(handler); err != nil {
		return err
	}
	m, err := j.groundwork(ctx)
	if err != nil {
		return err
	}
	config, err := spec.Sandbox(j.pod, m, j.op.Attempt)
	if err != nil {
		return err
	}
	if len(j.observed.Sandboxes) >= spec.FullSandboxes {
		spec.Bare(config)
	}
	// spec.Sandbox has computed the same DNS settings; the events about omitted entries are
	// recorded here.
	if _, warnings, err := spec.DNS(j.pod, m); err == nil {
		for _, w := range warnings {
			j.loop.event(j.pod, "", v1.EventTypeWarning, w.Reason, w.Message)
			if w.Node != "" {
				j.loop.nodeEvent(v1.EventTypeWarning, w.Reason, w.Node)
			}
		}
	}
	if j.op.Attempt > 0 {
		j.loop.event(j.pod, "", v1.EventTypeNormal, "SandboxChanged", "Pod sandbox changed, it will be killed and re-created.")
	}
	done, err := j.loop.starts.Take(ctx, false)
	if err != nil {
		return err
	}
	defer done()
	began := time.Now()
	j.sandbox, err = j.loop.cfg.Runtime.RunPodSandbox(ctx, config, handler)
	j.loop.cfg.Metrics.ranSandbox(handler, time.Since(began), err)
	return err
}

// handler returns the runtime handler of the pod's RuntimeClass; "" is the runtime's default. A pod
// whose class is unknown does not run, because the class may be what isolates it.
func (l *Loop) handler(ctx context.Context, p *v1.Pod) (string, error) {
	name := p.Spec.RuntimeClassName
	if name == nil || *name == "" {
		return "", nil
	}
	handler, err := l.cfg.RuntimeHandler(ctx, *name)
	if err != nil {
		return "", fmt.Errorf("find the pod's runtime class: %w", err)
	}
	return handler, nil
}

// groundwork makes the log directory and the pod's cgroup, and returns the host with its current
// resolv.conf. The three run concurrently, as each is a round trip.
func (j *job) groundwork(ctx context.Context) (spec.Machine, error) {
	m := j.machine()
	logs, resolv := make(chan error, 1), make(chan []byte, 1)
	go func() {
		err := budget.ErrPanicked
		defer budget.From(ctx).Recover("make a log directory")
		defer func() { logs <- err }()
		err = j.loop.cfg.Host.MkdirAll(ctx, spec.LogDir(m, j.pod), 0o755, nil)
	}()
	go func() {
		data := m.HostResolv
		defer budget.From(ctx).Recover("read the host's resolv.conf")
		defer func() { resolv <- data }()
		if j.loop.resolv == nil || j.pod.Spec.DNSPolicy == v1.DNSNone {
			return
		}
		now, err := j.loop.resolv.get(ctx)
		if err != nil {
			klog.FromContext(ctx).V(1).Info("Failed to read the host's resolv.conf; the pod gets the last known one", "err", err)
			return
		}
		data = now
	}()
	err := j.loop.cfg.Host.EnsureCgroup(ctx, spec.CgroupPath(j.pod, m), host.CgroupResources(spec.PodCgroup(j.pod, m)))
	errLogs := <-logs
	m.HostResolv = <-resolv
	switch {
	case errLogs != nil:
		return m, fmt.Errorf("make the log directory: %w", errLogs)
	case err != nil:
		return m, &cgroupError{err}
	}
	return m, nil
}

// cgroupError is the error for a pod whose cgroup cannot be made. It has an event of its own.
type cgroupError struct{ err error }

func (e *cgroupError) Error() string { return "make the pod's cgroup: " + e.err.Error() }
func (e *cgroupError) Unwrap() error { return e.err }

func (j *job) removeSandbox(ctx context.Context) error {
	done, err := j.loop.removals.Take(ctx, true) // urgent: this is the last step of the pod
	if err != nil {
		return err
	}
	defer done()
	return j.loop.cfg.Runtime.RemovePodSandbox(ctx, j.op.ID)
}

// release removes the pod's volumes, files and cgroup from the host, and its records from other parts.
// Its containers and sandboxes have stopped.
func (j *job) release(ctx context.Context) error {
	if err := j.loop.cfg.Volumes.Release(ctx, j.pod.UID); err != nil {
		return err
	}
	// A process that is still in the cgroup is unknown to the runtime: an interrupted start can
	// leave one. RemoveCgroup kills it.
	if err := j.loop.cfg.Host.RemoveCgroup(ctx, spec.CgroupPath(j.pod, j.machine()), true); err != nil {
		return fmt.Errorf("remove the pod's cgroup: %w", err)
	}
	j.loop.cfg.Images.Forget(j.pod)
	j.loop.unregister(j.pod.UID, true)
	j.loop.cfg.Tokens.Forget(j.pod.UID)
	return nil
}

// hosts returns the pod's /etc/hosts; ok is false if the container brings its own. The file is
// written before each start, because a new sandbox has new addresses. It is written in place, so
// that running containers, which have it mounted, see the change.
func (j *job) hosts(ctx context.Context, c *v1.Container, m spec.Machine) (file host.Entry, ok bool, err error) {
	if !spec.ManagesHosts(j.pod, c, j.podIPs) {
		return file, false, nil
	}
	var base []byte
	if j.pod.Spec.HostNetwork {
		data, err := j.loop.cfg.Host.ReadFile(ctx, "/etc/hosts", 1<<20)
		if err != nil {
			return file, false, fmt.Errorf("read the host's /etc/hosts: %w", err)
		}
		base = data
	}
	data, err := spec.HostsFile(j.pod, m, j.podIPs, base)
	return host.Entry{Path: spec.EtcHostsPath(m.RootDir, j.pod.UID), Mode: 0o644, Data: data, InPlace: true}, err == nil, err
}
