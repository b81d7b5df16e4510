// Package docs runs every command of documents, in their order, on labs, with the names of
// the documents replaced by the lab's, and compares what is printed with what the document
// says. A command that it does not run fails it.
//
// docs/far-machines.md and docs/trust.md are run on a machine alone; docs/quickstart.md,
// docs/networking.md and docs/security.md on a cluster that installs the chart, on a
// machine where no kube-proxy is but the one that the document brings. Of what a reader
// has, "make" is the test's: it takes the image that was made before.
//
//	hack/test-machine.sh docs      (root; it builds helm and the lab's programs)
package docs
