// Package docs runs every command of docs/far-machines.md and docs/trust.md, in their
// order, on a host of a lab, with the names of the documents replaced by the lab's. A
// command that it does not run fails it.
//
//	BOWLINE_E2E=1 go test ./test/docs      (root; hack/build-lab.sh and make build before)
package docs
