package ssh_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"syscall"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// TestMkdirAllSwapped: a pod replaces a hostPath directory, or its parent, with a link at the
// moment when MkdirAll runs one of its tools. The target of the link does not change.
func TestMkdirAllSwapped(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	for name, c := range map[string]struct{ tool, swapped, link string }{
		"the parent, when it is made":      {"mkdir", "up", "outside"},
		"the parent, when it is given":     {"chown", "up", "outside"},
		"the directory, when it is made":   {"mkdir", "up/dir", "../outside/dir"},
		"the directory, when it is given":  {"chown", "up/dir", "../outside/dir"},
		"the directory, when it is opened": {"chmod", "up/dir", "../outside/dir"},
	} {
		t.Run(name, func(t *testing.T) {
			d := t.TempDir()
			swap := "#!/bin/sh\nexport PATH=" + shell.DefaultPath + "\n"
			if c.tool == "mkdir" { // after the directory was created
				swap += c.tool + ` "$@" || exit` + "\nset -- .\n"
			}
			swap += "[ -e '" + d + "/old' ] || [ ! -e '" + d + "/up/dir' ] || { mv '" + d + "/" + c.swapped + "' '" + d + "/old'; ln -s '" + c.link + "' '" + d + "/" + c.swapped + "'; }\n"
			if c.tool == "mkdir" {
				swap += "exit 0\n"
			} else {
				swap += "exec " + c.tool + ` "$@"` + "\n"
			}
			if err := errors.Join(os.MkdirAll(d+"/outside/dir", 0o700), os.Chmod(d+"/outside/dir", 0o700), os.Mkdir(d+"/bin", 0o755), os.Mkdir(d+"/up", 0o755),
				os.WriteFile(d+"/bin/"+c.tool, []byte(swap), 0o755)); err != nil {
				t.Fatal(err)
			}
			h := open(t, ssh.Config{Path: d + "/bin:" + shell.DefaultPath})
			closeHost(t, h)
			// The call may fail: nothing else may change.
			err := h.MkdirAll(context.Background(), d+"/up/dir", 0o755|fs.ModeSticky, &host.Owner{UID: 4321, GID: 4321})
			if _, swapped := os.Lstat(d + "/old"); swapped != nil {
				t.Fatalf("%s was not used: %v", c.tool, err)
			}
			st, statErr := os.Stat(d + "/outside/dir")
			if statErr != nil || st.Mode() != fs.ModeDir|0o700 || st.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("what the link leads to has %v of %d, %v (%v)", st.Mode(), st.Sys().(*syscall.Stat_t).Uid, statErr, err)
			}
		})
	}
}
