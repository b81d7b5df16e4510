package owner

import (
	"cmp"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

// Witnesses are facts, readable by a node, that tell one cluster from another. Each can change
// while the cluster stays the same: anyone may delete the Service, and kube-apiserver creates
// another; a CA is rotated; a Node is deleted and registers again. An empty witness proves nothing.
type Witnesses struct {
	// Service is the UID of the Service default/kubernetes.
	Service string `json:"serviceUID,omitempty"`
	// Node is the UID of the Node object.
	Node string `json:"nodeUID,omitempty"`
	// CA holds fingerprints of the certificates that the API server is trusted by. A bundle has
	// several while the CA is rotated.
	CA []string `json:"ca,omitempty"`
}

// Likeness says whether two sets of witnesses belong to one cluster.
type Likeness int

const (
	Another  Likeness = iota
	Doubtful          // only the CA agrees, and clusters may share a CA
	Same
)

// compare says whether w and seen belong to one cluster. UIDs are unique, so an equal UID of the
// Service or of the Node is proof. An equal CA is not, and it counts for nothing if the Nodes
// differ.
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

// merge returns w updated by what seen has.
func (w Witnesses) merge(seen Witnesses) Witnesses {
	w.Service, w.Node = cmp.Or(seen.Service, w.Service), cmp.Or(seen.Node, w.Node)
	if len(seen.CA) > 0 {
		w.CA = seen.CA
	}
	return w
}

// learns reports whether seen has anything that w lacks or has differently.
func (w Witnesses) learns(seen Witnesses) bool {
	next := w.merge(seen)
	return next.Service != w.Service || next.Node != w.Node || !slices.Equal(next.CA, w.CA)
}

// Compare says whether the record belongs to the cluster with these witnesses, which the caller
// identifies as clusterUID.
func (r *Record) Compare(clusterUID string, seen Witnesses) Likeness {
	if clusterUID != "" && r.ClusterUID == clusterUID {
		return Same
	}
	known := r.Witnesses
	// Records of the first release have only ClusterUID: the UID of the Service.
	known.Service = cmp.Or(known.Service, r.ClusterUID)
	return known.compare(seen)
}

// mayBeSame reports whether an owner file that recorded only the Service may be of the cluster, as
// the files of the first release did. The Service may have been recreated since, and nothing else
// was recorded. The cluster must have a Node of the file's name: most other clusters have none.
func (e Evidence) mayBeSame() bool {
	known := e.File.Witnesses
	return known.Node == "" && len(known.CA) == 0 && e.Witnesses.Node != "" && e.File.NodeName == e.Self.NodeName
}

// identity returns the identity under which we manage the host. The cluster keeps the UID that it
// had when the host became its node, so that the stamps on what runs stay ours.
func (e Evidence) identity() Identity {
	as := Identity{NodeName: e.Self.NodeName}
	if e.File != nil && e.FileErr == nil {
		as.ClusterUID = e.File.ClusterUID
		like := e.File.Compare(e.Self.ClusterUID, e.Witnesses)
		// If nothing of the node runs, no pod can be ended by mistake.
		idle := !slices.ContainsFunc(e.Sandboxes, func(s Sandbox) bool { return s.Stamp == as.Stamp() })
		if like == Same || idle && (like == Doubtful || e.mayBeSame()) || like.proved(as, e.Sandboxes, e.Pods) {
			return as
		}
		return e.Self
	}
	// No usable file: accept the identity of a stamp if the API server knows a pod that has it.
	for _, s := range e.Sandboxes {
		if id, ok := identityOf(s.Stamp); ok && id.NodeName == as.NodeName && Another.proved(id, e.Sandboxes, e.Pods) {
			return id
		}
	}
	return e.Self
}

// IsOf reports whether a claim of a host with this owner file, by the given cluster, would keep the
// file's identity.
func (r *Record) IsOf(clusterUID string, seen Witnesses, sandboxes []Sandbox, pods []KnownPod) bool {
	e := Evidence{Self: Identity{clusterUID, r.NodeName}, Witnesses: seen, Pods: pods, File: r, Sandboxes: sandboxes}
	return e.identity() == r.Identity
}

// KnownPod is a pod of the node in the API server.
type KnownPod struct {
	UID types.UID
	// For a mirror pod, Static is the UID of its static pod, and Seen is when the node first saw
	// that pod, to the nanosecond.
	Static types.UID
	Seen   string
}

// KnownPods returns the part of the API server's pods that a decision needs.
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

// proved reports whether one of the sandboxes has the node's stamp and belongs to a pod that the
// API server has for the node. Pod UIDs are unique, so then the node belongs to the cluster. The
// UID of a static pod derives from its manifest and the node's name, which two clusters may share:
// it counts only together with the time at which the pod was first seen, or if the clusters are
// alike otherwise.
func (l Likeness) proved(id Identity, sandboxes []Sandbox, pods []KnownPod) bool {
	return slices.ContainsFunc(sandboxes, func(s Sandbox) bool {
		return s.Stamp == id.Stamp() && s.PodUID != "" && slices.ContainsFunc(pods, func(p KnownPod) bool {
			static := types.UID(s.PodUID) == p.Static && (l != Another || s.Seen != "" && s.Seen == p.Seen)
			return types.UID(s.PodUID) == p.UID || static
		})
	})
}
