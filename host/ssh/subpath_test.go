package ssh_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// striking returns a PATH whose mount first acts as the pod: it runs strike in the volume, once,
// between the script's check and the mount.
func striking(t *testing.T, volume, strike, real, path string) string {
	t.Helper()
	dir := t.TempDir()
	text := fmt.Sprintf("#!/bin/sh\ncase $* in\n*--bind*) (cd '%s' && %s) >/dev/null 2>&1 ;;\nesac\nexec %s \"$@\"\n", volume, strike, real)
	testutil.Must(t, os.WriteFile(dir+"/mount", []byte(text), 0o755))
	return dir + ":" + path
}

// TestSubPathChangesBeforeTheMount: whatever a pod does between the check and the mount, nothing
// from outside is mounted, and nothing blocks.
func TestSubPathChangesBeforeTheMount(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root mounts")
	}
	mount, err := exec.LookPath("mount")
	testutil.Must(t, err)
	mounts := []struct{ name, shell, mount string }{{"sh", "/bin/sh", mount}}
	if dir, _ := shtest.Busybox(t); dir != "" { // its sh would not search PATH for mount
		mounts = append(mounts, struct{ name, shell, mount string }{"busybox", "/bin/sh", dir + "/mount"})
	}
	if bash, err := exec.LookPath("bash"); err == nil { // which does not ask the kernel for its directory
		mounts = append(mounts, struct{ name, shell, mount string }{"bash", bash, mount})
	}
	for _, how := range mounts {
		for _, c := range []struct {
			name, strike string
			file, dir    string // what the mounts of d/file and d may show; empty: they must be refused
		}{
			{"the directory becomes a link out", "mv d away; ln -s ../outside d", "inside", "inside"},
			{"the directory becomes another", "mv d away; mkdir d; echo other >d/file", "", "inside"},
			{"the file becomes a link out", "rm d/file; ln -s ../../outside/file d/file", "", "link"},
			{"the file becomes a link to a link", "rm d/file; ln -s l d/file; ln -s ../../outside/file d/l", "", "link"},
			{"the file becomes a FIFO", "rm d/file; mkfifo d/file", "fifo", "fifo"},
			{"the file becomes another", "rm d/file; printf other >d/file", "other", "other"},
			{"the file is removed", "rm d/file", "", "none"},
			{"the directory is removed", "rm -r d", "", ""},
		} {
			for part, want := range map[string]string{"d/file": c.file, "d": c.dir} {
				t.Run(how.name+"/"+c.name+"/"+filepath.Base(part), func(t *testing.T) {
					base := t.TempDir()
					s := host.SubPath{Root: base + "/v", Path: part, Target: base + "/t"}
					for p, content := range map[string]string{base + "/outside/file": "outside", s.Root + "/d/file": "inside"} {
						testutil.Must(t, errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(content), 0o644)))
					}
					h := open(t, ssh.Config{Shell: how.shell, Path: striking(t, s.Root, c.strike, how.mount, shell.DefaultPath)})
					closeHost(t, h)
					err := h.BindSubPath(t.Context(), s)
					t.Cleanup(func() {
						if err := h.Unmount(context.Background(), s.Target); err != nil {
							t.Error(err)
						}
					})
					checkSubPath(t, h, s, want, err)
				})
			}
		}
	}
}

func checkSubPath(t *testing.T, h *ssh.Host, s host.SubPath, want string, err error) {
	t.Helper()
	mounts, listErr := h.ListMounts(t.Context(), s.Target)
	if listErr != nil {
		t.Fatal(listErr)
	}
	if err != nil {
		if len(mounts) > 0 {
			t.Errorf("refused, and mounted: %+v", mounts)
		}
		// A changed path may be refused, whatever was visible before.
		t.Logf("refused: %v", err)
		return
	}
	if want == "" {
		t.Error("it was mounted")
	}
	file := s.Target
	if s.Path == "d" {
		file += "/file"
	}
	st, err := os.Lstat(file)
	switch {
	case err != nil:
		if want != "none" {
			t.Error(err)
		}
	case st.Mode()&os.ModeNamedPipe != 0:
		if want != "fifo" {
			t.Errorf("a FIFO, want %s", want)
		}
	case st.Mode()&os.ModeSymlink != 0:
		if want != "link" {
			t.Errorf("a link, want %s", want)
		}
	default:
		if data, err := os.ReadFile(file); err != nil || string(data) != want {
			t.Errorf("it shows %q, %v, want %q", data, err, want)
		}
	}
}
