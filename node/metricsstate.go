package node

import (
	"context"
	"crypto/tls"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/kubeletmetrics"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// metricsState returns what the node has now.
func (n *Node) metricsState(ctx context.Context) kubeletmetrics.State {
	s := kubeletmetrics.State{
		NodeName: n.name, CgroupVersion: n.seen.load().facts.CgroupVersion,
		Containers: map[string]int{}, Desired: map[bool]int{}, Active: map[bool]int{}, Volumes: map[kubeletmetrics.Volumes]int{},
		Working: map[kubeletmetrics.Work]int{}, PendingResizes: map[kubeletmetrics.Pending]int{}, PodCertificates: map[kubeletmetrics.PodCertificate]int{},
		CertificateTTL: map[string]float64{}, Features: n.features.All(),
	}
	for name, c := range map[string]*tls.Certificate{"client": n.cluster.Identity.Certificate(), "server": n.servingCertificate()} {
		if c != nil && c.Leaf != nil {
			s.CertificateTTL[name] = time.Until(c.Leaf.NotAfter).Seconds()
		}
	}
	cache := n.pleg.Cache()
	for _, ref := range cache.Known() {
		o := cache.Get(ref.UID)
		if slices.ContainsFunc(o.Sandboxes, func(b pod.Sandbox) bool { return b.Ready }) {
			s.Sandboxes++
		}
		for _, c := range o.Containers {
			s.Containers[strings.ToLower(c.State.String())]++
		}
	}
	for _, p := range n.sources.Pods() {
		n.countPod(&s, p)
	}
	for w, count := range n.loop.Working() {
		s.Working[workOf(w)] += count
	}
	if n.parts.certificates != nil {
		for state, count := range n.parts.certificates.States(time.Now()) {
			s.PodCertificates[kubeletmetrics.PodCertificate(state)] = count
		}
	}
	s.Claims, s.Logs = n.stats.Claims(ctx), n.stats.Logs(ctx)
	if at := n.pleg.RelistedAt(); !at.IsZero() {
		s.RelistedAt = float64(at.UnixNano()) / 1e9
	}
	return s
}

// countPod adds a pod of a source.
func (n *Node) countPod(s *kubeletmetrics.State, p *v1.Pod) {
	static, now := pod.IsStatic(p), n.loop.State(p.UID)
	s.Desired[static]++
	if static {
		s.MirrorPods++
	}
	s.EphemeralContainers += len(p.Spec.EphemeralContainers)
	mounts := n.parts.volumes.Mounts(p.UID)
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		plugin := volume.PluginName(v)
		if _, ok := mounts[v.Name]; ok {
			s.Volumes[kubeletmetrics.Volumes{Plugin: plugin, State: kubeletmetrics.Actual}]++
		}
		if !now.Ended() {
			s.Volumes[kubeletmetrics.Volumes{Plugin: plugin, State: kubeletmetrics.Desired}]++
		}
	}
	if now.Ended() {
		return
	}
	s.Active[static]++
	if now.Status == nil {
		return
	}
	for _, c := range now.Status.Conditions {
		switch c.Type {
		case v1.PodResizePending:
			reason := "deferred"
			if c.Reason == v1.PodReasonInfeasible {
				reason = "infeasible"
			}
			s.PendingResizes[kubeletmetrics.Pending{Reason: reason, Priority: syncloop.PriorityBucket(p)}]++
		case v1.PodResizeInProgress:
			s.ResizesInProgress++
		}
	}
}

// workOf is a worker's work in the kubelet's words.
func workOf(w syncloop.Work) kubeletmetrics.Work {
	out := kubeletmetrics.Work{Config: kubeletmetrics.OfSource, Lifecycle: kubeletmetrics.Syncing}
	switch {
	case w.Phase >= pod.Terminated:
		out.Lifecycle = kubeletmetrics.Terminated
	case w.Phase > pod.Syncing:
		out.Lifecycle = kubeletmetrics.Terminating
	}
	if w.Static {
		out.Static = "true"
	}
	switch {
	case w.Orphan:
		out.Config, out.Static = kubeletmetrics.RuntimeOnly, "unknown"
	case !w.Sourced:
		out.Config = kubeletmetrics.Orphaned
	}
	return out
}

// uptimeTimeout bounds the call that asks when the host booted.
const uptimeTimeout = 10 * time.Second

// observeStartup observes how long the node's start took, if this process registered it for the first
// time.
func (n *Node) observeStartup(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s := <-n.started:
			out := kubeletmetrics.Startup{Began: n.began, Asked: s.Asked, Registered: s.Registered, Ready: s.Ready}
			asking, cancel := context.WithTimeout(ctx, uptimeTimeout)
			sampled, err := n.host.Sample(asking, host.SampleRequest{})
			cancel()
			if err == nil {
				out.Booted = time.Now().Add(-sampled.Uptime)
			} else {
				klog.FromContext(ctx).Error(err, "Failed to read when the host booted")
			}
			n.metrics.parts.Started(out)
		}
	}
}

// servingCertificate returns the serving certificate that the cluster signed for the node, or nil.
func (n *Node) servingCertificate() *tls.Certificate {
	if n.serving == nil {
		return nil
	}
	return n.serving.Current()
}
