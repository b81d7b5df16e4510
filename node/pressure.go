package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/eviction"
	"github.com/bowline-k8s/bowline/syncloop/imagegc"
	"github.com/bowline-k8s/bowline/syncloop/images"
	"github.com/bowline-k8s/bowline/syncloop/oom"
	"github.com/bowline-k8s/bowline/syncloop/plan"
)

// buildPressure creates what frees resources of the host: image garbage collection and the eviction
// manager.
func (n *Node) buildPressure(ctx context.Context) (err error) {
	own, machine := sandboxImage(ctx, n.runtime), n.seen.load().spec
	if n.parts.imageGC, err = imagegc.New(imagegc.Config{
		Runtime: n.runtime, Host: n.host, Event: n.node.RecordEvent,
		Removed: func(r imagegc.Reason) { n.metrics.parts.ImageCollected(string(r)) },
		Present: func(ctx context.Context, ids []string, asOf time.Time) {
			if err := n.parts.images.Prune(ctx, ids, asOf); err != nil {
				klog.FromContext(ctx).V(1).Info("Failed to remove the records of removed images, will retry", "err", err)
			}
		},
		Wanted: func(i *runtimeapi.Image) bool { return named(i, own) || wanted(n.sources.Pods(), i) },
		// Remove nothing before the API server's pods are known, or while another process has the
		// host.
		Quiet: func() bool { return !n.sources.SeenBy(pod.SourceAPI) || n.node.Standby() },
		High:  int(*n.cfg.ImageGCHighThresholdPercent), Low: int(*n.cfg.ImageGCLowThresholdPercent),
		MinAge: n.cfg.ImageMinimumGCAge.Duration, MaxAge: n.cfg.ImageMaximumGCAge.Duration,
	}); err != nil {
		return err
	}
	limits, err := thresholds(n.cfg)
	if err != nil {
		return err
	}
	watcher, err := oom.New(oom.Config{Host: n.host, Event: n.node.RecordEvent})
	if err != nil {
		return err
	}
	n.parts.eviction, err = eviction.New(eviction.Config{
		Host: n.host, Runtime: n.runtime, Pods: evictionPods{n}, Event: n.node.RecordEvent, Condition: n.node.SetPressure,
		Measured: func(ctx context.Context, m host.Measured) { watcher.Saw(ctx, m.OOMKills) }, PodsCgroup: n.podsCgroup,
		Evicted: n.metrics.parts.Evicted, Decided: n.metrics.parts.EvictionDecided,
		// In the kubelet's order, because containers that have ended keep their images in use.
		Reclaim: func(ctx context.Context) error {
			return errors.Join(n.parts.sweeper.RemoveFinished(ctx), n.parts.imageGC.RemoveUnused(ctx))
		},
		RootDir:    n.cfg.RootDirectory,
		LogDir:     func(p *v1.Pod) string { return spec.LogDir(machine, p) },
		Thresholds: limits, MaxGrace: time.Duration(n.cfg.EvictionMaxPodGracePeriod) * time.Second,
		Transition: n.cfg.EvictionPressureTransitionPeriod.Duration,
	})
	return err
}

// podsCgroup returns the cgroup of all pods if it has a limit, else "".
func (n *Node) podsCgroup() string {
	if !slices.Contains(n.cfg.EnforceNodeAllocatable, config.EnforcePods) {
		return ""
	}
	return spec.PodsCgroup(n.seen.load().spec.CgroupDriver)
}

// pressed is the sync loop's pods as the eviction manager sees them.
type evictionPods struct{ *Node }

func (e evictionPods) Active() []*v1.Pod     { return e.loop.Active() }
func (e evictionPods) Over(p *v1.Pod) bool   { return e.loop.State(p.UID).Released() }
func (e evictionPods) Spared(p *v1.Pod) bool { return admit.Critical(p) }
func (e evictionPods) Evict(p *v1.Pod, grace time.Duration, message string, disrupted bool, notes map[string]string) {
	syncloop.AnnotatedEvent(e.recorder, p, notes, v1.EventTypeWarning, admit.ReasonEvicted, message)
	t := plan.Terminate{At: time.Now(), Grace: grace, Cause: plan.CauseEvicted, Reason: admit.ReasonEvicted, Message: message}
	if disrupted {
		t.Disruption = message
	}
	e.loop.End(p.UID, t)
}

// thresholds returns the configured eviction thresholds. One of 0 % or 100 % means none, as for the
// kubelet.
func thresholds(cfg *config.Host) ([]pod.Threshold, error) {
	var out []pod.Threshold
	for _, list := range []struct {
		of   map[string]string
		soft bool
	}{{cfg.EvictionHard, false}, {cfg.EvictionSoft, true}} {
		for _, s := range pod.Signals {
			text, ok := list.of[string(s)]
			if !ok {
				continue
			}
			amount, err := pod.ParseAmount(text)
			if err != nil {
				return nil, fmt.Errorf("eviction threshold of %s: %w", s, err)
			}
			if amount.Quantity == nil && (amount.Share == 0 || amount.Share == 1) {
				continue
			}
			t := pod.Threshold{Signal: s, Amount: amount, Soft: list.soft}
			if list.soft {
				if t.Grace, err = time.ParseDuration(cfg.EvictionSoftGracePeriod[string(s)]); err != nil {
					return nil, fmt.Errorf("grace period of %s: %w", s, err)
				}
			}
			if more, ok := cfg.EvictionMinimumReclaim[string(s)]; ok {
				a, err := pod.ParseAmount(more)
				if err != nil {
					return nil, fmt.Errorf("minimum reclaim of %s: %w", s, err)
				}
				t.MinReclaim = &a
			}
			out = append(out, t)
			// The memory available to pods has the same threshold as the host's, as on a kubelet.
			if s == pod.MemoryAvailable && !list.soft && slices.Contains(cfg.EnforceNodeAllocatable, config.EnforcePods) {
				t.Signal = pod.AllocatableMemory
				out = append(out, t)
			}
		}
	}
	return out, nil
}

// heldBack returns what the hard thresholds keep from pods: a pod that used it would be evicted.
func heldBack(cfg *config.Host, memory, disk int64) (v1.ResourceList, error) {
	list, err := thresholds(cfg)
	if err != nil {
		return nil, err
	}
	out := v1.ResourceList{}
	for _, t := range list {
		switch {
		case t.Soft:
		case t.Signal == pod.MemoryAvailable:
			out[v1.ResourceMemory] = *resource.NewQuantity(t.Amount.Of(memory), resource.BinarySI)
		case t.Signal == pod.NodeFsAvailable:
			out[v1.ResourceEphemeralStorage] = *resource.NewQuantity(t.Amount.Of(disk), resource.BinarySI)
		}
	}
	return out, nil
}

// wanted reports whether a pod that has not ended names the image, and so may be about to use it.
func wanted(pods []*v1.Pod, i *runtimeapi.Image) bool {
	for _, p := range pods {
		if pod.Terminal(p.Status.Phase) {
			continue
		}
		for c := range pod.AllContainers(&p.Spec) {
			if named(i, c.Image) {
				return true
			}
		}
		for k := range p.Spec.Volumes {
			if v := p.Spec.Volumes[k].Image; v != nil && named(i, v.Reference) {
				return true
			}
		}
	}
	return false
}

// named reports whether the reference is one of the image's names, or its ID.
func named(i *runtimeapi.Image, reference string) bool {
	if reference == "" {
		return false
	}
	if reference == i.GetId() {
		return true
	}
	r, err := images.Parse(reference)
	if err != nil {
		return false
	}
	if r.Digest != "" {
		return slices.Contains(i.GetRepoDigests(), r.Repository+"@"+r.Digest)
	}
	return slices.Contains(i.GetRepoTags(), r.Repository+":"+r.Tag)
}

// sandboxImage returns the runtime's sandbox (pause) image, if the runtime reports one. Runtimes
// too old to pin it would miss it when no registry is in reach.
func sandboxImage(ctx context.Context, runtime interface {
	Status(ctx context.Context, verbose bool) (*runtimeapi.StatusResponse, error)
}) string {
	st, err := runtime.Status(ctx, true)
	if err != nil {
		return ""
	}
	var c struct {
		SandboxImage string `json:"sandboxImage"`
	}
	if json.Unmarshal([]byte(st.GetInfo()["config"]), &c) != nil {
		return ""
	}
	return c.SandboxImage
}
