// Package helm installs charts/bowline with helm in a lab. The test's own Bowline manages the first
// host, where the chart's pods run. These make nodes of the second and third host over SSH; the API
// server reaches each in a different way. Meanwhile the API server logs the requests, and the log
// is checked at the end.
//
//	hack/test-machine.sh helm      (root; it builds helm, the image and the lab's programs)
package helm
