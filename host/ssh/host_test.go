package ssh_test

import (
	"context"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// How the second process of the suite opens its host.
const (
	pathEnv  = "BOWLINE_SSH_TEST_PATH"
	shellEnv = "BOWLINE_SSH_TEST_SHELL"
)

func TestMain(m *testing.M) {
	hosttest.Main(m, func() (host.Host, error) {
		return ssh.New(context.Background(), ssh.Config{Name: "second", Transport: &shtest.Transport{DieWithUs: true},
			Path: os.Getenv(pathEnv), Shell: os.Getenv(shellEnv)})
	})
}

func open(t testing.TB, c ssh.Config) *ssh.Host {
	t.Helper()
	if c.Name == "" {
		c.Name = "far.example"
	}
	if c.Transport == nil {
		c.Transport = &shtest.Transport{}
	}
	h, err := ssh.New(context.Background(), c)
	testutil.Must(t, err)
	return h
}

func suite(t *testing.T, config func() ssh.Config) {
	t.Setenv(pathEnv, config().Path)
	t.Setenv(shellEnv, config().Shell)
	hosttest.Run(t, func(t *testing.T) host.Host { return open(t, config()) }, filepath.Join(t.TempDir(), "host"))
}

// chosen skips all but one of the four suites that follow if BOWLINE_TEST_SEED is set: each takes
// minutes on a slow machine. Without a seed, and in make test-full, all of them run.
func chosen(t *testing.T, suite uint32) {
	t.Helper()
	seed := os.Getenv("BOWLINE_TEST_SEED")
	if seed == "" {
		return
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, seed)
	if h.Sum32()%4 != suite {
		t.Skip("not the suite that BOWLINE_TEST_SEED=" + seed + " chooses")
	}
}

// TestSuite runs the suite with /bin/sh.
func TestSuite(t *testing.T) {
	chosen(t, 3)
	suite(t, func() ssh.Config { return ssh.Config{} })
}

// TestSuiteBash runs the suite with bash.
func TestSuiteBash(t *testing.T) {
	chosen(t, 0)
	suite(t, func() ssh.Config { return ssh.Config{Shell: "/bin/bash"} })
}

// TestSuiteWithoutSFTP runs the suite with ranged reads by commands.
func TestSuiteWithoutSFTP(t *testing.T) {
	chosen(t, 1)
	suite(t, func() ssh.Config { return ssh.Config{Transport: &shtest.Transport{NoSFTP: true}} })
}

// TestSuiteBusybox runs the suite with busybox's sh, and its applets first in PATH.
func TestSuiteBusybox(t *testing.T) {
	chosen(t, 2)
	dir, sh := shtest.Busybox(t)
	if dir == "" {
		t.Skip("there is no busybox on this machine")
	}
	suite(t, func() ssh.Config { return ssh.Config{Shell: sh, Path: dir + ":/usr/sbin:/usr/bin:/sbin:/bin"} })
}
