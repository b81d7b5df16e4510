// Package manifest decodes static pods from a file on the host or from a URL. The package is pure:
// equal manifests of one origin make equal pods, so a pod keeps its identity across restarts of
// Bowline.
//
//	Decode ──► read ──► identify ──► setDefaults ──► references, validate ──► pods
//
// decode.go reads, identity.go gives a pod its name and UID, defaults.go sets the defaults
// that the API server would set, validate.go and references.go refuse pods that a node cannot run
// without the API server.
package manifest

// Origin is where a manifest was read from.
type Origin struct {
	// Source is pod.SourceFile or pod.SourceHTTP.
	Source string
	// Path is the file's path on the host, or the URL.
	Path string
	// NodeName is the name of the node that the pods run on.
	NodeName string
}
