package ssh_test

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// TestMkdirAllSwapped: a pod makes a link of a hostPath directory at the moment at which
// MkdirAll uses one of its tools. What the link leads to stays what it is.
func TestMkdirAllSwapped(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root gives files away")
	}
	for _, tool := range []string{"stat", "chmod", "chown"} {
		t.Run(tool, func(t *testing.T) {
			d := t.TempDir()
			swap := "#!/bin/sh\nexport PATH=" + shell.DefaultPath + "\n" +
				"[ -e '" + d + "/old' ] || [ ! -e '" + d + "/dir' ] || { mv '" + d + "/dir' '" + d + "/old'; ln -s outside '" + d + "/dir'; }\n" +
				"exec " + tool + ` "$@"` + "\n"
			if err := errors.Join(os.Mkdir(d+"/outside", 0o700), os.Mkdir(d+"/bin", 0o755), os.WriteFile(d+"/bin/"+tool, []byte(swap), 0o755)); err != nil {
				t.Fatal(err)
			}
			h := open(t, ssh.Config{Path: d + "/bin:" + shell.DefaultPath})
			closeHost(t, h)
			if err := os.Mkdir(d+"/dir", 0o700); err != nil {
				t.Fatal(err)
			}
			// It may be refused: nothing else may change.
			err := h.MkdirAll(context.Background(), d+"/dir", 0o755, &host.Owner{UID: 4321, GID: 4321})
			if _, swapped := os.Lstat(d + "/old"); swapped != nil {
				t.Fatalf("%s was not used: %v", tool, err)
			}
			st, statErr := os.Stat(d + "/outside")
			if statErr != nil || st.Mode().Perm() != 0o700 || st.Sys().(*syscall.Stat_t).Uid != 0 {
				t.Errorf("what the link leads to has %v of %d, %v (%v)", st.Mode(), st.Sys().(*syscall.Stat_t).Uid, statErr, err)
			}
		})
	}
}
