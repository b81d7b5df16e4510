package hosts

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
)

// judge says what host is to be driven, or why it is not. Both are nil while that is
// not known yet.
func (s *Source) judge(ctx context.Context, h *v1alpha1.Host) (*config.Host, *verdict, error) {
	cfg, err := Translate(h, s.cfg.Template, s.cfg.Namespace, s.cfg.Kubeconfig)
	if err != nil {
		return nil, refused(ReasonInvalid, "%v", err), nil
	}
	if s.cfg.Shard != nil && !far(h) {
		return nil, refused(ReasonInvalid, "spec.endpoint: %s is of the machine that a replica of Bowline runs on, which is another one with each replica; give it an ssh:// endpoint, or take hostObjects.replicas out of the configuration", h.Spec.Endpoint), nil
	}
	if !s.cfg.AllowLocal && !far(h) {
		return nil, refused(ReasonInvalid, "spec.endpoint: %s is of the machine that Bowline runs on, and its configuration does not allow Hosts of that: give it an ssh:// endpoint, or set hostObjects.allowLocal there, which makes everyone who may create Hosts root on that machine", h.Spec.Endpoint), nil
	}
	if v := among(h, s.all()); v != nil {
		return nil, v, nil
	}
	if s.cfg.Taken != nil && s.cfg.Taken(cfg) {
		return nil, refused(ReasonHostTaken, "Bowline's configuration has a host of that name, node or endpoint already; take it out there, or delete this Host"), nil
	}
	if s.wants(h.Name) {
		return cfg, nil, nil // the node is ours, and the link has its own words for a login
	}
	node, err := s.node(ctx, cfg.NodeName)
	if err != nil {
		return nil, nil, err
	}
	if node != nil && !made(node, h) {
		return nil, refused(ReasonNodeTaken, "there is a node %s that was not made of this Host; choose another nodeName (in a new Host), or, if the node is gone for good, kubectl delete node %s", cfg.NodeName, cfg.NodeName), nil
	}
	known, missing := s.secrets.look(h.Name)
	switch {
	case !known:
		return nil, nil, nil
	case missing != "":
		return nil, refused(ReasonCredentials, "%s", missing), nil
	}
	return cfg, nil, nil
}

// among refuses a Host that is the node or the machine of an older one.
func among(h *v1alpha1.Host, all []*v1alpha1.Host) *verdict {
	for _, o := range all {
		if o.UID == h.UID || !older(o, h) {
			continue
		}
		if nodeName(o) == nodeName(h) {
			return refused(ReasonHostTaken, "the Host %s is the node %s already; delete one of the two", o.Name, nodeName(h))
		}
		// An address behind another jump is another machine's.
		if o.Spec.Endpoint == h.Spec.Endpoint && equality.Semantic.DeepEqual(v1alpha1.Jumps(o), v1alpha1.Jumps(h)) {
			return refused(ReasonHostTaken, "the Host %s has the same endpoint; delete one of the two", o.Name)
		}
	}
	return nil
}

// older: two that were made in the same second are told apart by their names.
func older(a, b *v1alpha1.Host) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// made tells whether a node was made of h: whoever is called like it is not it.
func made(node *v1.Node, h *v1alpha1.Host) bool {
	return node.Annotations[v1alpha1.HostAnnotation] == h.Name
}

// node reads a node; nil: there is none.
func (s *Source) node(ctx context.Context, name string) (*v1.Node, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	node, err := s.cfg.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("look for the node %q: %w", name, err)
	}
	return node, nil
}
