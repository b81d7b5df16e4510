// Package helm installs charts/bowline with helm in a lab: the first host is driven by a
// Bowline of the test's own, the chart's pods run there and make nodes of the second and
// the third over SSH, which the API server reaches each in another way. The API server
// logs meanwhile who asks it for what, and the log is judged at the end.
//
//	hack/test-machine.sh helm      (root; it builds helm, the image and the lab's programs)
package helm
