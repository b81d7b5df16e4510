package hosts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
)

const (
	// lookAgain at what nothing announces: pods that end, a driver that does.
	lookAgain = time.Second
	// releaseTime bounds one try to empty a machine, releasePause is between two.
	releaseTime, releasePause = 10 * time.Minute, 20 * time.Second
	// orDetach is the way out of every step that needs the machine.
	orDetach = `; to let go of the machine as it is: kubectl patch host %s --type=merge -p '{"spec":{"deletionPolicy":"detach"}}'`
)

// remove does the step that is due for a deleted Host.
func (s *Source) remove(ctx context.Context, h *v1alpha1.Host) (time.Duration, error) {
	if !slices.Contains(h.Finalizers, v1alpha1.Finalizer) {
		s.unwant(h.Name) // it was never driven, or is done with
		return 0, nil
	}
	node, err := s.node(ctx, nodeName(h))
	if err != nil {
		return 0, err
	}
	if node != nil && !made(node, h) {
		node = nil
	}
	r := removal{
		policy: h.Spec.DeletionPolicy, was: h.Status.NodeName != "" || node != nil, node: node != nil,
		driven: s.wants(h.Name) || s.cfg.Driven(h.Name), released: s.released(h.Name),
	}
	var pods []v1.Pod
	if node != nil {
		r.cordoned = node.Spec.Unschedulable
		if pods, err = s.pods(ctx, node.Name); err != nil {
			return 0, err
		}
		for i := range pods {
			if endable(&pods[i]) {
				r.pods++
			}
		}
	}
	due := next(r)
	klog.FromContext(ctx).V(2).Info("The Host is being removed", "step", due)
	v, err := s.take(ctx, due, h, node, pods)
	if err != nil || v == nil {
		return 0, err
	}
	_, err = s.tell(ctx, h, v)
	return lookAgain, err
}

// take takes a step. The verdict says how far it is; nil: the Host is gone.
func (s *Source) take(ctx context.Context, due step, h *v1alpha1.Host, node *v1.Node, pods []v1.Pod) (*verdict, error) {
	detaches := h.Spec.DeletionPolicy == v1alpha1.DeletionDetach
	ctx, cancel := context.WithTimeout(ctx, 2*answer)
	defer cancel()
	switch due {
	case stepCordon:
		_, err := s.cfg.Client.CoreV1().Nodes().Patch(ctx, node.Name, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{})
		if ignoreGone(err) != nil {
			return nil, fmt.Errorf("cordon node %q: %w", node.Name, err)
		}
		return refused(ReasonDraining, "the node %s takes no new pods", node.Name), nil
	case stepEvict:
		return s.evict(ctx, h, pods)
	case stepEnd:
		s.unwant(h.Name)
		if detaches {
			return refused(ReasonDetaching, "the driver is being ended; what runs on the machine runs on"), nil
		}
		return refused(ReasonDraining, "the driver is being ended"), nil
	case stepRelease:
		cfg, err := Translate(h, s.cfg.Template, s.cfg.Namespace, s.cfg.Kubeconfig)
		if err != nil {
			return refused(ReasonBlocked, "the machine cannot be released, as the Host is wrong: %v; mend it"+orDetach, err, h.Name), nil
		}
		if err := s.release(h.Name, cfg); err != nil {
			return refused(ReasonBlocked, "the machine could not be released: %v; it is tried again"+orDetach, err, h.Name), nil
		}
		return refused(ReasonReleasing, "what the node left on the machine is being removed"), nil
	case stepForget:
		if err := s.forget(ctx, node, pods, detaches); err != nil {
			return nil, err
		}
		return refused(ReasonDraining, "the node %s is deleted", node.Name), nil
	default:
		if detaches {
			klog.FromContext(ctx).Info("The Host is detached: its node is gone, and its containers, their volumes and the owner file are on the machine still", "endpoint", h.Spec.Endpoint)
		} else {
			klog.FromContext(ctx).Info("The Host is gone: nothing of its node is left")
		}
		keep := slices.DeleteFunc(slices.Clone(h.Finalizers), func(f string) bool { return f == v1alpha1.Finalizer })
		return nil, ignoreGone(s.cfg.API.SetFinalizers(ctx, h, keep))
	}
}

// evict asks for the end of the node's pods, as their disruption budgets allow, and has
// the host driven meanwhile: nobody else ends them.
func (s *Source) evict(ctx context.Context, h *v1alpha1.Host, pods []v1.Pod) (*verdict, error) {
	cfg, err := Translate(h, s.cfg.Template, s.cfg.Namespace, s.cfg.Kubeconfig)
	if err != nil {
		return refused(ReasonBlocked, "the node's pods cannot be ended, as the Host is wrong: %v; mend it"+orDetach, err, h.Name), nil
	}
	s.want(ctx, h.Name, cfg)
	var ending, kept []string
	for i := range pods {
		p := &pods[i]
		name := p.Namespace + "/" + p.Name
		switch {
		case !endable(p):
			continue
		case p.DeletionTimestamp != nil:
			ending = append(ending, name)
			continue
		}
		err := s.cfg.Client.CoreV1().Pods(p.Namespace).EvictV1(ctx, &policyv1.Eviction{
			ObjectMeta:    metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
			DeleteOptions: &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(p.UID))},
		})
		switch {
		case err == nil:
			klog.FromContext(ctx).Info("Evicted a pod of a Host that is deleted", "pod", name)
			ending = append(ending, name)
		case apierrors.IsNotFound(err), apierrors.IsConflict(err): // it has gone, or is another by now
		case apierrors.IsTooManyRequests(err):
			kept = append(kept, fmt.Sprintf("%s (%v)", name, err))
		default:
			return nil, fmt.Errorf("evict pod %s: %w", name, err)
		}
	}
	switch trouble := s.trouble(h.Name); {
	case len(kept) > 0:
		return refused(ReasonBlocked, "pods may not be evicted yet, and are asked again: %s", several(kept)), nil
	case trouble != "" && len(ending) > 0:
		return refused(ReasonBlocked, "%d pods have to end, and the machine cannot be driven: %s"+orDetach, len(ending), trouble, h.Name), nil
	}
	return refused(ReasonDraining, "%d pods are ending: %s", len(ending), several(ending)), nil
}

// several names a few of many.
func several(names []string) string {
	const few = 5
	if len(names) > few {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:few], ", "), len(names)-few)
	}
	return strings.Join(names, ", ")
}

// trouble is why a host's pods cannot be ended just now.
func (s *Source) trouble(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r, ok := s.reports[name]; {
	case !ok:
		return ""
	case r.Err != nil:
		return r.Err.Error()
	case r.Link != nil && !r.Link.Up:
		return r.Link.Message
	}
	return ""
}

// endable: not one that its controller would put back on the node at once.
func endable(p *v1.Pod) bool {
	c := metav1.GetControllerOf(p)
	return p.Annotations[v1.MirrorPodAnnotationKey] == "" && (c == nil || c.Kind != "DaemonSet")
}

func (s *Source) pods(ctx context.Context, node string) ([]v1.Pod, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	list, err := s.cfg.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %q: %w", node, err)
	}
	return list.Items, nil
}

// forget deletes the node, and, where nothing of them runs, its pods. The node goes
// first, or a DaemonSet would put its pods back.
func (s *Source) forget(ctx context.Context, node *v1.Node, pods []v1.Pod, running bool) error {
	err := s.cfg.Client.CoreV1().Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(node.UID))})
	if ignoreGone(err) != nil {
		return fmt.Errorf("delete node %q: %w", node.Name, err)
	}
	if running {
		return nil // the cluster's own garbage collection has its time for them
	}
	var faults []error
	for i := range pods {
		err := s.cfg.Client.CoreV1().Pods(pods[i].Namespace).Delete(ctx, pods[i].Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pods[i].UID)),
		})
		if ignoreGone(err) != nil && !apierrors.IsConflict(err) {
			faults = append(faults, fmt.Errorf("delete pod %s/%s: %w", pods[i].Namespace, pods[i].Name, err))
		}
	}
	return errors.Join(faults...)
}

// release is the last try to empty a machine.
type release struct {
	running bool
	cancel  context.CancelFunc
	done    bool // nothing of ours is there
	err     error
	ended   time.Time
}

func (s *Source) released(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.releases[name]
	return r != nil && r.done
}

// release has a machine emptied, beside everything else; the error is the last try's.
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
