package pod

import v1 "k8s.io/api/core/v1"

// Annotations of static pods and their mirror pods, which are the kubelet's.
const (
	// AnnotationSource names the source of a pod: "file", "http", and "api" for others.
	AnnotationSource = "kubernetes.io/config.source"
	// AnnotationSeen is when the node first saw the pod, in RFC 3339.
	AnnotationSeen = "kubernetes.io/config.seen"
	// AnnotationConfigHash is the static pod's UID, which is made of its content.
	AnnotationConfigHash = "kubernetes.io/config.hash"
	// AnnotationManifest is the path of the file that the pod was read from; it is ours.
	AnnotationManifest = "bowline.io/manifest"
	// AnnotationMirror marks a mirror pod: the hash of the static pod it stands for.
	AnnotationMirror = v1.MirrorPodAnnotationKey
)

// Sources of pods.
const (
	SourceAPI  = "api"
	SourceFile = "file"
	SourceHTTP = "http"
)

// IsStatic says whether p is a static pod. Of a pod of the API server it may be asked
// once the api source has taken it in, which believes no such annotation.
func IsStatic(p *v1.Pod) bool {
	source := p.Annotations[AnnotationSource]
	return !IsMirror(p) && (source == SourceFile || source == SourceHTTP)
}

// IsMirror says whether p stands for a static pod in the API server.
func IsMirror(p *v1.Pod) bool {
	_, is := p.Annotations[AnnotationMirror]
	return is
}
