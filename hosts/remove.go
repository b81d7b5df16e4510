package hosts

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/drain"
	"github.com/bowline-k8s/bowline/hint"
)

const (
	// lookAgain is the poll interval for what sends no event: pods that end, a driver that stops.
	lookAgain = time.Second
	// releaseTime bounds one attempt to release a machine; releasePause is between two attempts.
	releaseTime, releasePause = 10 * time.Minute, 20 * time.Second
	// orDetach is appended to the messages of steps that need the machine: how to do without it.
	orDetach = `; to detach the host as it is: kubectl patch host %s --type=merge -p '{"spec":{"deletionPolicy":"detach"}}'`
)

// remove does the step that is due for a deleted Host.
func (s *Source) remove(ctx context.Context, h *v1alpha1.Host) (time.Duration, error) {
	if !slices.Contains(h.Finalizers, v1alpha1.Finalizer) {
		s.unwant(h.Name) // it was never managed, or is done
		return 0, nil
	}
	node, err := s.node(ctx, nodeName(h))
	if err != nil {
		return 0, err
	}
	if node != nil && !createdFor(node, h) {
		node = nil
	}
	r := removal{
		policy: h.Spec.DeletionPolicy, was: h.Status.NodeName != "" || node != nil, node: node != nil,
		managed: s.wants(h.Name) || s.cfg.Managed(h.Name), released: s.released(h.Name),
	}
	var pods []v1.Pod
	if node != nil {
		r.cordoned = node.Spec.Unschedulable
		if pods, err = s.pods(ctx, node.Name); err != nil {
			return 0, err
		}
		for i := range pods {
			if drain.Evictable(&pods[i]) {
				r.pods++
			}
		}
	}
	due := next(r)
	klog.FromContext(ctx).V(2).Info("Removing the Host", "step", due)
	v, err := s.take(ctx, due, h, node, pods)
	if err != nil || v == nil {
		return 0, err
	}
	_, err = s.writeStatus(ctx, h, v)
	return lookAgain, err
}

// take takes a step. The verdict reports its progress; nil: the Host is gone.
func (s *Source) take(ctx context.Context, due step, h *v1alpha1.Host, node *v1.Node, pods []v1.Pod) (*notReady, error) {
	detaches := h.Spec.DeletionPolicy == v1alpha1.DeletionDetach
	ctx, cancel := context.WithTimeout(ctx, 2*answer)
	defer cancel()
	switch due {
	case stepCordon:
		if err := s.drained(node.Name).Cordon(ctx); err != nil {
			return nil, err
		}
		return notReadyf(ReasonDraining, "the node %s takes no new pods", node.Name), nil
	case stepEvict:
		return s.evict(ctx, h, node, pods)
	case stepEnd:
		s.unwant(h.Name)
		if detaches {
			return notReadyf(ReasonDetaching, "stopping the driver; the containers on the host keep running"), nil
		}
		return notReadyf(ReasonDraining, "stopping the driver"), nil
	case stepRelease:
		cfg, err := Translate(h, s.cfg.Template, s.cfg.Namespace, s.cfg.Kubeconfig)
		if err != nil {
			return notReadyf(ReasonBlocked, "cannot release the host, as the Host object is invalid: %v; fix it"+orDetach, err, h.Name), nil
		}
		if err := s.release(h.Name, cfg); err != nil {
			return notReadyf(ReasonBlocked, "failed to release the host: %v; will retry"+orDetach, err, h.Name), nil
		}
		return notReadyf(ReasonReleasing, "removing what the node left on the host"), nil
	case stepForget:
		if err := s.forget(ctx, node, pods, detaches); err != nil {
			return nil, err
		}
		s.emitOnNode(ctx, node.Name, released(h, "Host"))
		return notReadyf(ReasonDraining, "the node %s is deleted", node.Name), nil
	default:
		if detaches {
			klog.FromContext(ctx).Info("Detached the Host", "endpoint", h.Spec.Endpoint, "kept", "containers, volumes, owner file")
		} else {
			klog.FromContext(ctx).Info("Removed the Host", "endpoint", h.Spec.Endpoint)
		}
		keep := slices.DeleteFunc(slices.Clone(h.Finalizers), func(f string) bool { return f == v1alpha1.Finalizer })
		if err := s.cfg.API.SetFinalizers(ctx, h, keep); err != nil {
			return nil, ignoreGone(err)
		}
		if h.Status.NodeName != "" { // it has been a node
			s.emit(ctx, h, []event{released(h, "")})
		}
		return nil, nil
	}
}

// evict evicts the node's pods, within their disruption budgets. It keeps the host managed
// meanwhile, because only its driver can end them.
func (s *Source) evict(ctx context.Context, h *v1alpha1.Host, node *v1.Node, pods []v1.Pod) (*notReady, error) {
	cfg, err := Translate(h, s.cfg.Template, s.cfg.Namespace, s.cfg.Kubeconfig)
	if err != nil {
		return notReadyf(ReasonBlocked, "cannot stop the node's pods, as the Host object is invalid: %v; fix it"+orDetach, err, h.Name), nil
	}
	s.want(ctx, h.Name, cfg)
	round, err := s.drained(node.Name).EvictAll(ctx, pods)
	for _, name := range round.Evicted {
		namespace, pod, _ := strings.Cut(name, "/")
		klog.FromContext(ctx).Info("Evicted a pod of the Host", "pod", klog.KRef(namespace, pod))
	}
	if err != nil {
		return nil, err
	}
	ending := round.Ending
	var kept []string
	for _, r := range round.Refused {
		kept = append(kept, fmt.Sprintf("%s (%v)", r.Pod, r.Err))
	}
	switch trouble := s.blocked(h.Name); {
	case len(kept) > 0:
		return notReadyf(ReasonBlocked, "the eviction of pods is refused, will retry: %s", several(kept)), nil
	case trouble != "" && len(ending) > 0:
		return notReadyf(ReasonBlocked, "%d pods must stop, but the host cannot be managed: %s"+orDetach, len(ending), trouble, h.Name), nil
	}
	return notReadyf(ReasonDraining, "%d pods are terminating: %s", len(ending), several(ending)), nil
}

// released returns the event of the end of a deleted Host. prefix is that of its reason.
func released(h *v1alpha1.Host, prefix string) event {
	if h.Spec.DeletionPolicy == v1alpha1.DeletionDetach {
		return event{v1.EventTypeNormal, prefix + reasonDetached, "the Host " + h.Name + " was deleted; the containers on the host keep running"}
	}
	return event{v1.EventTypeNormal, prefix + reasonReleased, "the Host " + h.Name + " was deleted; nothing of the node is left on the host"}
}

// several joins up to five names, and counts the rest.
func several(names []string) string {
	const few = 5
	if len(names) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	}
	return strings.Join(names, ", ")
}

// blocked is why a host's pods cannot be ended at the moment, or empty.
func (s *Source) blocked(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r, ok := s.reports[name]; {
	case !ok:
		return ""
	case r.Err != nil:
		return hint.Text(r.Err)
	case r.Link != nil && !r.Link.Up:
		return r.Link.Message
	}
	return ""
}

// drained returns the node of this name, to drain it.
func (s *Source) drained(name string) drain.Node {
	return drain.Node{Client: s.cfg.Client, Name: name}
}

func (s *Source) pods(ctx context.Context, node string) ([]v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	return s.drained(node).Pods(ctx)
}

// forget deletes the Node and, unless they still run, its pods. Pods that run are left to the
// cluster's pod garbage collection.
func (s *Source) forget(ctx context.Context, node *v1.Node, pods []v1.Pod, running bool) error {
	n := s.drained(node.Name)
	n.UID = node.UID
	if running {
		pods = nil
	}
	return n.Delete(ctx, pods)
}

// release is the last attempt to release a machine.
type release struct {
	running bool
	cancel  context.CancelFunc
	done    bool // nothing of ours is on the machine
	err     error
	ended   time.Time
}

func (s *Source) released(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.releases[name]
	return r != nil && r.done
}

// release releases a machine in the background. The error is that of the last attempt.
func (s *Source) release(name string, cfg *config.Host) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.releases[name]
	if r == nil {
		r = &release{}
		s.releases[name] = r
	}
	if r.running || r.done || r.err != nil && time.Since(r.ended) < releasePause {
		return r.err
	}
	r.running = true
	ctx, cancel := context.WithTimeout(s.ctx, releaseTime)
	r.cancel = cancel
	s.running.Go(func() {
		defer cancel()
		err := s.cfg.Release(ctx, cfg)
		s.mu.Lock()
		r.running, r.done, r.err, r.ended = false, err == nil, err, time.Now()
		s.mu.Unlock()
		s.queue.Add(name)
	})
	return r.err
}
