// Package manifest makes static pods of what is written down about them, in a
// file on the machine or behind a URL. It is pure: equal manifests of one origin
// make equal pods, so that a pod is the same one after a restart of ours.
//
//	Decode ──► read ──► identify ──► setDefaults ──► references, validate ──► pods
//
// decode.go reads, identity.go gives a pod its name and UID, defaults.go fills in
// what the API server would, validate.go and references.go refuse what a node
// cannot run without the API server.
package manifest

// Origin is where a manifest was read.
type Origin struct {
	// Source is pod.SourceFile or pod.SourceHTTP.
	Source string
	// Path is the file's path on the machine, or the URL.
	Path string
	// NodeName is of the node that the pods are for.
	NodeName string
}
