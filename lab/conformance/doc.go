// Package conformance pins the programs that hack/conformance-build.sh builds from the Kubernetes
// project's own module: the e2e suite as a test binary, and the programs of the images that the
// suite runs. Nothing imports this package.
package conformance
