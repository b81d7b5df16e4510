package ssh_test

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
)

func longRoots(t *testing.T, config ssh.Config) {
	hosttest.LongRoots(t, func(t *testing.T) host.Host { return open(t, config) }, filepath.Join(t.TempDir(), "host"))
}

func TestLongRoots(t *testing.T) { longRoots(t, ssh.Config{}) }

func TestLongRootsBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip(err)
	}
	longRoots(t, ssh.Config{Shell: bash})
}

func TestLongRootsBusybox(t *testing.T) {
	dir, sh := shtest.Busybox(t)
	if dir == "" {
		t.Skip("there is no busybox on this machine")
	}
	longRoots(t, ssh.Config{Shell: sh, Path: dir + ":/usr/sbin:/usr/bin:/sbin:/bin"})
}
