// Package handover tests the beginning and the end of a machine's life as a node, on
// hosts of a lab: a machine that cannot be a node is prepared, has pods, and is handed
// back as it was, while a pod of somebody else runs on.
//
//	BOWLINE_E2E=1 go test ./test/handover      (root; hack/build-lab.sh and make build before)
package handover
