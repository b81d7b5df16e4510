package owner

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// Witnesses are what tells one cluster from another, as a node may read it. Each can
// change while the cluster stays the same: anybody may delete the Service, and
// kube-apiserver makes another; a CA is rotated; a Node is deleted and registers again.
// An empty one says nothing.
type Witnesses struct {
	// Service is the UID of the Service default/kubernetes.
	Service string `json:"serviceUID,omitempty"`
	// Node is the UID of the Node object.
	Node string `json:"nodeUID,omitempty"`
	// CA are fingerprints of the certificates by which the API server is trusted. A
	// bundle holds several while the CA is rotated.
	CA []string `json:"ca,omitempty"`
}

// Likeness is whether two sets of witnesses are of one cluster.
type Likeness int

const (
	Another  Likeness = iota
	Doubtful          // nothing agrees but the CA, which clusters may share
	Same
)

// compare says how far w and seen are of one cluster. A UID exists once: that of the
// Service or of the Node is proof. The CA is not, and counts for nothing where the Node
// is another one.
func (w Witnesses) compare(seen Witnesses) Likeness {
	agrees := func(a, b string) bool { return a != "" && a == b }
	switch {
	case agrees(w.Service, seen.Service) || agrees(w.Node, seen.Node):
		return Same
	case w.Node != "" && seen.Node != "":
		return Another
	case slices.ContainsFunc(w.CA, func(f string) bool { return slices.Contains(seen.CA, f) }):
		return Doubtful
	}
	return Another
}

// merge is what is seen now, and what was known of the rest.
func (w Witnesses) merge(seen Witnesses) Witnesses {
	w.Service, w.Node = cmp.Or(seen.Service, w.Service), cmp.Or(seen.Node, w.Node)
	if len(seen.CA) > 0 {
		w.CA = seen.CA
	}
	return w
}

// learns says whether seen tells more than, or another than, what is known.
func (w Witnesses) learns(seen Witnesses) bool {
	next := w.merge(seen)
	return next.Service != w.Service || next.Node != w.Node || !slices.Equal(next.CA, w.CA)
}

// Compare says whether the record is of the cluster that a caller calls clusterUID and
// that has these witnesses.
func (r *Record) Compare(clusterUID string, seen Witnesses) Likeness {
	if clusterUID != "" && r.ClusterUID == clusterUID {
		return Same
	}
	known := r.Witnesses
	// The record of a first release has the Service's UID for the cluster's.
	known.Service = cmp.Or(known.Service, r.ClusterUID)
	return known.compare(seen)
}

// identity is as whom we drive the machine: the cluster keeps the name that it had when
// the machine became its node, so that the stamps on what runs stay ours.
func (e Evidence) identity() Identity {
	as := Identity{NodeName: e.Self.NodeName}
	if e.File != nil && e.FileErr == nil {
		as.ClusterUID = e.File.ClusterUID
		like := e.File.Compare(e.Self.ClusterUID, e.Witnesses)
		// Where nothing of the node runs no pod can be ended by mistake.
		idle := !slices.ContainsFunc(e.Sandboxes, func(s Sandbox) bool { return s.Stamp == as.Stamp() })
		if like == Same || like == Doubtful && idle || like.Proved(as, e.Sandboxes, e.Pods) {
			return as
		}
		return e.Self
	}
	// No file to go by: what runs, if all of it is one node's, and the API server knows it.
	for _, s := range e.Sandboxes {
		if id, ok := identityOf(s.Stamp); ok && id.NodeName == as.NodeName && Another.Proved(id, e.Sandboxes, e.Pods) {
			return id
		}
	}
	return e.Self
}

// IsOf says whether a machine with this owner file would be driven as the node of the
// cluster that it is known to be a node of.
func (r *Record) IsOf(clusterUID string, seen Witnesses, sandboxes []Sandbox, pods []KnownPod) bool {
	e := Evidence{Self: Identity{clusterUID, r.NodeName}, Witnesses: seen, Pods: pods, File: r, Sandboxes: sandboxes}
	return e.identity() == r.Identity
}

// KnownPod is a pod that the API server has for the node.
type KnownPod struct {
	UID types.UID
	// Static is the UID of the static pod that a mirror pod stands for, and Seen when its
	// node first saw that, to the nanosecond.
	Static types.UID
	Seen   string
}

// KnownPods is what a decision knows of those that the API server lists.
func KnownPods(list []v1.Pod) []KnownPod {
	known := make([]KnownPod, 0, len(list))
	for i := range list {
		p := &list[i]
		k := KnownPod{UID: p.UID}
		if pod.IsMirror(p) {
			k.Static, k.Seen = types.UID(p.Annotations[pod.AnnotationMirror]), p.Annotations[pod.AnnotationSeen]
		}
		known = append(known, k)
	}
	return known
}

// Proved says whether one of the sandboxes bears the node's stamp and is of a pod that the
// API server has for the node. Pods' UIDs exist once, so the cluster is the node's then.
// That of a static pod is made of its manifest and the node's name, which two clusters may
// share: it counts together with the time at which the pod was first seen, or where the
// clusters are alike otherwise.
func (l Likeness) Proved(id Identity, sandboxes []Sandbox, pods []KnownPod) bool {
	return slices.ContainsFunc(sandboxes, func(s Sandbox) bool {
		return s.Stamp == id.Stamp() && s.PodUID != "" && slices.ContainsFunc(pods, func(p KnownPod) bool {
			static := types.UID(s.PodUID) == p.Static && (l != Another || s.Seen != "" && s.Seen == p.Seen)
			return types.UID(s.PodUID) == p.UID || static
		})
	})
}
