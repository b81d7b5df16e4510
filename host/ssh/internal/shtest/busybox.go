package shtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Busybox makes a directory of busybox's applets, and returns it and the path of its sh; both
// are empty without busybox.
func Busybox(t testing.TB) (dir, sh string) {
	t.Helper()
	bin, err := exec.LookPath("busybox")
	if err != nil {
		t.Logf("not with busybox: %v", err)
		return "", ""
	}
	list, err := exec.Command(bin, "--list").Output()
	testutil.Must(t, err)
	dir = t.TempDir()
	for _, applet := range strings.Fields(string(list)) {
		testutil.Must(t, os.Symlink(bin, filepath.Join(dir, applet)))
	}
	return dir, filepath.Join(dir, "sh")
}
