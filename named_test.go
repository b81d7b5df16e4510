package bowline

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

var (
	quoted = regexp.MustCompile("`([A-Za-z_*][A-Za-z0-9_.*-]*(?:/[A-Za-z0-9_.*-]+)*)`")
	goFile = regexp.MustCompile(`[A-Za-z0-9_*-]+(?:/[A-Za-z0-9_*-]+)*\.go\b`)
)

// TestNamedFilesExist: a document that names a Go file or a directory of the repository, and a
// package comment that names a Go file, name one that exists. A short name counts below the other
// paths of its line.
func TestNamedFilesExist(t *testing.T) {
	names := 0
	exists := func(name string, below ...string) bool {
		names++
		for _, dir := range append(below, ".") {
			if found, err := filepath.Glob(filepath.Join(dir, name)); err == nil && len(found) > 0 {
				return true
			}
		}
		return false
	}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md"} {
		documents, err := filepath.Glob(pattern)
		testutil.Must(t, err)
		for _, path := range documents {
			src, err := os.ReadFile(path)
			testutil.Must(t, err)
			for i, line := range strings.Split(string(src), "\n") {
				var paths []string
				below := []string{"syncloop"}
				for _, m := range quoted.FindAllStringSubmatch(line, -1) {
					first, _, deep := strings.Cut(m[1], "/")
					if first == "bin" || m[1] == "hosts/status" {
						continue // what is built, and a resource of the API
					}
					_, err := os.Stat(first)
					if dir := filepath.Dir(m[1]); deep && err == nil {
						below = append(below, dir, m[1])
					}
					if deep && err == nil && !strings.Contains(m[1], ".") || strings.HasSuffix(m[1], ".go") {
						paths = append(paths, m[1])
					}
				}
				for _, name := range paths {
					if !exists(name, below...) {
						t.Errorf("%s:%d names %s, which does not exist", path, i+1, name)
					}
				}
			}
		}
	}
	for _, p := range typedModule() {
		for _, file := range p.files {
			if path := positions.File(file.Pos()).Name(); filepath.Base(path) == "doc.go" {
				for _, name := range goFile.FindAllString(file.Doc.Text(), -1) {
					if !exists(name, filepath.Dir(path)) {
						t.Errorf("%s names %s, which does not exist", path, name)
					}
				}
			}
		}
	}
	if names < 300 {
		t.Errorf("looked at %d names: there are more", names)
	}
}

// TestJourney: a pod's way through the code is short, and does not lead through main.
func TestJourney(t *testing.T) {
	src, err := os.ReadFile("ARCHITECTURE.md")
	testutil.Must(t, err)
	_, rest, ok := strings.Cut(string(src), "## The journey of a pod")
	table, _, _ := strings.Cut(rest, "\n## ")
	if !ok {
		t.Fatal("ARCHITECTURE.md has no journey of a pod")
	}
	var files []string
	for line := range strings.Lines(table) {
		cells := strings.Split(line, "|")
		if len(cells) < 3 {
			continue
		}
		for _, m := range quoted.FindAllStringSubmatch(cells[2], -1) {
			if strings.HasPrefix(m[1], "cmd/") {
				t.Errorf("the journey leads through %s", m[1])
			}
			if strings.HasSuffix(m[1], ".go") && !slices.Contains(files, m[1]) {
				files = append(files, m[1])
			}
		}
	}
	if len(files) < 8 || len(files) > 15 {
		t.Errorf("the journey has %d files, want 8 to 15: %v", len(files), files)
	}
}
