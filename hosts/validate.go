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
	"github.com/bowline-k8s/bowline/hint"
)

// validate returns the config that h is to be managed by, or the reason why it is refused. Both are
// nil while that is not known yet.
func (s *Source) validate(ctx context.Context, h *v1alpha1.Host) (*config.Host, *notReady, error) {
	cfg, err := Translate(h, s.cfg.Template, s.cfg.Namespace, s.cfg.Kubeconfig)
	if err != nil {
		return nil, notReadyf(ReasonInvalid, "%s", hint.Text(err)), nil
	}
	if s.cfg.Shard != nil && !remote(h) {
		return nil, localEndpoint(h, "differs between replicas", "use an ssh:// endpoint, or remove hostObjects.replicas from Bowline's configuration"), nil
	}
	if !s.cfg.AllowLocal && !remote(h) {
		return nil, localEndpoint(h, "the configuration does not allow", "use an ssh:// endpoint, or set hostObjects.allowLocal, which makes everyone who may create Hosts root on Bowline's own machine"), nil
	}
	if v := conflicting(h, s.all()); v != nil {
		return nil, v, nil
	}
	if s.cfg.Taken != nil && s.cfg.Taken(cfg) {
		return nil, notReadyf(ReasonHostTaken, "Bowline's configuration already has a host with that name, node or endpoint; remove it there, or delete this Host"), nil
	}
	if s.wants(h.Name) {
		return cfg, nil, nil // the node is ours, and the link reports login errors itself
	}
	node, err := s.node(ctx, cfg.NodeName)
	if err != nil {
		return nil, nil, err
	}
	if node != nil && !createdFor(node, h) {
		return nil, notReadyf(ReasonNodeTaken, "the node %s exists and does not belong to this Host; choose another nodeName (in a new Host), or, if its host no longer exists, run kubectl delete node %s", cfg.NodeName, cfg.NodeName), nil
	}
	known, missing := s.secrets.look(h.Name)
	switch {
	case !known:
		return nil, nil, nil
	case missing != "":
		return nil, notReadyf(ReasonCredentials, "%s", missing), nil
	}
	return cfg, nil, nil
}

// localEndpoint refuses a Host whose endpoint is a socket of the machine that runs Bowline.
func localEndpoint(h *v1alpha1.Host, why, remedy string) *notReady {
	err := hint.Add(fmt.Errorf("spec.endpoint %s is a local socket, which %s", h.Spec.Endpoint, why), "%s", remedy)
	return notReadyf(ReasonInvalid, "%s", hint.Text(err))
}

// conflicting refuses a Host that has the node name or the endpoint of an older one.
func conflicting(h *v1alpha1.Host, all []*v1alpha1.Host) *notReady {
	for _, o := range all {
		if o.UID == h.UID || !older(o, h) {
			continue
		}
		if nodeName(o) == nodeName(h) {
			return notReadyf(ReasonHostTaken, "the Host %s already has the node name %s; delete one of the two", o.Name, nodeName(h))
		}
		// The same address behind different jumps is a different machine.
		if o.Spec.Endpoint == h.Spec.Endpoint && equality.Semantic.DeepEqual(v1alpha1.Jumps(o), v1alpha1.Jumps(h)) {
			return notReadyf(ReasonHostTaken, "the Host %s has the same endpoint; delete one of the two", o.Name)
		}
	}
	return nil
}

// older orders two Hosts by creation time. Names decide between Hosts created in the same second.
func older(a, b *v1alpha1.Host) bool {
	if a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return a.Name < b.Name
	}
	return a.CreationTimestamp.Before(&b.CreationTimestamp)
}

// createdFor reports whether node was created for h. A node that only has the same name was not.
func createdFor(node *v1.Node, h *v1alpha1.Host) bool {
	return node.Annotations[v1alpha1.HostAnnotation] == h.Name
}

// node returns the Node, or nil if there is none.
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
