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

// wrapsHook matches the head of a function that wraps the hook of a host.
var wrapsHook = regexp.MustCompile(`(?m)^func .*\bnext host\.Hook`)

// TestCarriersOfCalls: faultinject looks for the caller of a call beyond every package that wraps a hook.
// Otherwise all calls have the wrapper as their site, and the kill matrix cannot tell them apart.
func TestCarriersOfCalls(t *testing.T) {
	list := regexp.MustCompile(`var carriers = \[\]string\{(.*)\}`).FindStringSubmatch(string(testutil.ReadFile(t, "faultinject/faults.go")))
	if list == nil {
		t.Fatal("faultinject/faults.go has no carriers")
	}
	wrappers := 0
	testutil.Must(t, filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !wrapsHook.Match(text) {
			return err
		}
		wrappers++
		if carrier := filepath.ToSlash(filepath.Dir(path)) + "."; !strings.Contains(list[1], `"`+carrier+`"`) {
			t.Errorf("%s wraps host.Hook: add %q to carriers in faultinject/faults.go", path, carrier)
		}
		return nil
	}))
	if wrappers < 3 {
		t.Errorf("only %d files wrap host.Hook", wrappers)
	}
}
