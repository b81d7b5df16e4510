package pod

import v1 "k8s.io/api/core/v1"

// Annotations of static pods and their mirror pods. Those with kubernetes.io are the kubelet's.
const (
	// AnnotationSource is the source of a pod: "file", "http", or "api" for others.
	AnnotationSource = "kubernetes.io/config.source"
	// AnnotationSeen is when the node first saw the pod, in RFC 3339.
	AnnotationSeen = "kubernetes.io/config.seen"
	// AnnotationConfigHash is the static pod's UID, a hash of its content.
	AnnotationConfigHash = "kubernetes.io/config.hash"
	// AnnotationManifest is the path of the manifest file. It is Bowline's own.
	AnnotationManifest = "bowline.io/manifest"
	// AnnotationMirror marks a mirror pod. Its value is the hash of the static pod.
	AnnotationMirror = v1.MirrorPodAnnotationKey
)

// Sources of pods.
const (
	SourceAPI  = "api"
	SourceFile = "file"
	SourceHTTP = "http"
)

// IsStatic reports whether p is a static pod. A pod of the API server must have passed the api
// source first, which does not trust that annotation.
func IsStatic(p *v1.Pod) bool {
	source := p.Annotations[AnnotationSource]
	return !IsMirror(p) && (source == SourceFile || source == SourceHTTP)
}

// IsMirror reports whether p is a mirror pod: the API object of a static pod.
func IsMirror(p *v1.Pod) bool {
	_, is := p.Annotations[AnnotationMirror]
	return is
}
