package bowline

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

var auditedTest = regexp.MustCompile(`(?:([A-Za-z0-9_/.-]+_test\.go):)?\b((?:Test|Fuzz)[A-Z]\w*)`)

// TestAudits: each test that docs/audits.md names exists, in its file if the document gives one.
func TestAudits(t *testing.T) {
	const document = "docs/audits.md"
	all := map[string]string{} // the files by the test; the text of every test file by its path
	testutil.Must(t, filepath.WalkDir(".", func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "hosttest") {
			return err
		}
		src, err := os.ReadFile(path)
		all[path] = string(src)
		return err
	}))
	src, err := os.ReadFile(document)
	testutil.Must(t, err)
	tests := 0
	for i, line := range strings.Split(string(src), "\n") {
		for _, m := range auditedTest.FindAllStringSubmatch(line, -1) {
			tests++
			if !testExists(all, m[1], m[2]) {
				t.Errorf("%s:%d: there is no test %s %s", document, i+1, m[1], m[2])
			}
		}
	}
	if tests < 250 {
		t.Errorf("%s names %d tests; there are more", document, tests)
	}
}

// testExists reports whether the file, or any file if that is empty, has the test.
func testExists(all map[string]string, file, test string) bool {
	if file != "" {
		return strings.Contains(all[file], "\nfunc "+test+"(")
	}
	for _, src := range all {
		if strings.Contains(src, "\nfunc "+test+"(") {
			return true
		}
	}
	return false
}
