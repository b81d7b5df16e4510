// Package release tests the beginning and the end of a machine's life as a node, on hosts of a
// lab: a machine that cannot be a node is prepared, runs pods, and is released as it was, while a
// pod that does not belong to Bowline keeps running.
//
//	BOWLINE_E2E=1 go test ./test/release      (root; hack/build-lab.sh and make build before)
package release
