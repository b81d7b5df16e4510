package bowline

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestFuzzTargetsAreListed: docs/fuzzing.md names exactly the existing targets, so that a parser
// without one is noticed there, and each target starts from the stored corpus.
func TestFuzzTargetsAreListed(t *testing.T) {
	text, err := os.ReadFile("docs/fuzzing.md")
	testutil.Must(t, err)
	listed := map[string]bool{}
	for _, part := range regexp.MustCompile("`([a-z/]+)` (Fuzz\\w+(?:, Fuzz\\w+)*)").FindAllStringSubmatch(string(text), -1) {
		for name := range strings.SplitSeq(part[2], ", ") {
			listed[part[1]+" "+name] = true
		}
	}
	found, kept := map[string]bool{}, map[string]bool{} // targets, and those with a corpus
	target := regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	err = filepath.WalkDir(".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin" || d.Name() == "lab") {
			return filepath.SkipDir
		}
		if dir := filepath.ToSlash(filepath.Dir(p)); !d.IsDir() && strings.HasSuffix(dir, "/testdata/corpus") {
			kept[strings.TrimSuffix(dir, "/testdata/corpus")+" "+d.Name()] = true
		}
		if !strings.HasSuffix(p, "_test.go") {
			return nil
		}
		code, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		for _, m := range target.FindAllSubmatch(code, -1) {
			name := filepath.ToSlash(filepath.Dir(p)) + " " + string(m[1])
			if !listed[name] {
				t.Errorf("docs/fuzzing.md does not name %s", name)
			}
			found[name] = true
			delete(listed, name)
		}
		if n, m := len(target.FindAll(code, -1)), strings.Count(string(code), "\tcorpus.Add(f)\n"); n != m {
			t.Errorf("%s has %d targets, of which %d call corpus.Add", p, n, m)
		}
		return nil
	})
	testutil.Must(t, err)
	for name := range kept {
		if !found[name] {
			t.Errorf("%s has a corpus and no target", name)
		}
	}
	for name := range listed {
		t.Errorf("docs/fuzzing.md names %s, which is not there", name)
	}
}
