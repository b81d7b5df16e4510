// Package helm installs charts/bowline with helm in a lab: the first host is driven by a
// Bowline of the test's own, the chart's pod runs there and makes a node of the second
// over SSH.
//
//	hack/test-machine.sh helm      (root; it builds helm, the image and the lab's programs)
package helm
