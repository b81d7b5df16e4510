package ssh

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestSharedInTheRootMount: in every shell, the scripts find that a directory is in the mount of /.
func TestSharedInTheRootMount(t *testing.T) {
	dir := t.TempDir()
	const root = "22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n"
	for what, c := range map[string]struct{ script, mounts, called string }{
		"undo":           {scriptUndoShared, root + "23 22 254:0 " + dir + " " + dir + " rw shared:2 - ext4 /dev/vda rw\n", "umount -l -- " + dir},
		"shared already": {scriptMakeShared, root, ""},
	} {
		for name, config := range shellsHere(t) {
			t.Run(what+"/"+name, func(t *testing.T) {
				file := t.TempDir() + "/mountinfo"
				testutil.Must(t, os.WriteFile(file, []byte(c.mounts), 0o644))
				sh := config.Shell
				if sh == "" {
					sh = "/bin/sh"
				}
				text := "mount() { echo mount \"$@\"; }\numount() { echo umount \"$@\"; }\n" +
					strings.ReplaceAll(c.script, "/proc/self/mountinfo", file)
				cmd := exec.Command(sh, "-c", text, "sh", dir)
				cmd.Env = []string{"LC_ALL=C", "PATH=" + shell.DefaultPath}
				out, err := cmd.CombinedOutput()
				if got := strings.TrimSpace(string(out)); err != nil || got != c.called {
					t.Errorf("it called %q, %v; want %q", got, err, c.called)
				}
			})
		}
	}
}

// shellsHere are the configurations for the shells of this machine.
func shellsHere(t *testing.T) map[string]Config {
	shells := map[string]Config{"sh": {}}
	if bash, err := exec.LookPath("bash"); err == nil {
		shells["bash"] = Config{Shell: bash}
	}
	if dir, sh := shtest.Busybox(t); dir != "" {
		shells["busybox"] = Config{Shell: sh, Path: dir + ":/usr/sbin:/usr/bin:/sbin:/bin"}
	}
	return shells
}
