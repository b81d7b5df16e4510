// Package conformance pins what hack/conformance-build.sh builds of the Kubernetes
// project's own module: the e2e suite as a test binary, and the programs of the images
// that it runs. Nothing imports it.
package conformance
