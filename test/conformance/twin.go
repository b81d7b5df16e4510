package main

import (
	"io"
	"path/filepath"

	"github.com/bowline-k8s/bowline/test/twin"
)

// What make twin keeps, and why what differs there differs.
const (
	twinResults = "docs/twin.json"
	twinCauses  = "test/twin/causes.yaml"
)

// writeTwins writes the document's section of the twins, from what there is below root;
// without results there is none.
func writeTwins(to io.Writer, root string) error {
	r, err := twin.ReadResults(filepath.Join(root, twinResults))
	if err != nil || len(r) == 0 {
		return err
	}
	causes, err := twin.ReadCauses(filepath.Join(root, twinCauses))
	if err != nil {
		return err
	}
	twin.WriteSection(to, r, causes)
	return nil
}
