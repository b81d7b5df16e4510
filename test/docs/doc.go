// Package docs runs every command of the documents, in their order, on labs, and compares the
// output with what the document says. It replaces the documents' names by the lab's. A document
// with a command that is not run fails.
//
// docs/remote-hosts.md and docs/trust.md run on a machine alone; docs/quickstart.md,
// docs/networking.md and docs/security.md on a cluster that installs the chart, on a machine whose
// only kube-proxy is the one that the document installs. The test brings its own "make", which
// takes the image that was built before.
//
//	hack/test-machine.sh docs      (root; it builds helm and the lab's programs)
package docs
