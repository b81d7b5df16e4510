package main

import (
	"io"
	"path/filepath"

	"github.com/bowline-k8s/bowline/test/twin"
)

// The results of make twin, and the causes of its differences.
const (
	twinResults = "docs/twin.json"
	twinCauses  = "test/twin/causes.yaml"
)

// writeTwins writes the document's section of the twins from the files below root. Without results
// it writes nothing.
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
