// Package recordtest gives tests the records that each version of Bowline leaves on a host, as
// that version wrote them: host/schema/testdata/records. v0 is the format without schema
// versions. A new version of any record adds a directory; existing ones do not change.
package recordtest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/link/linktest"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Versions are the names of the directories.
var Versions = []string{"v0", "v1"}

// Each runs f for each version, locally and over SSH, with a root directory that has its
// records.
func Each(t *testing.T, f func(t *testing.T, version string, h host.Host, root string)) {
	for name, open := range map[string]func(*testing.T) host.Host{"local": localHost, "ssh": remote} {
		t.Run(name, func(t *testing.T) {
			h := open(t)
			for _, version := range Versions {
				t.Run(version, func(t *testing.T) { f(t, version, h, root(t, version)) })
			}
		})
	}
}

func root(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	testutil.Must(t, os.CopyFS(dir, os.DirFS(filepath.Join(records(t), version))))
	return dir
}

// records returns the directory of all versions. It looks for it from the test's working directory,
// because with -trimpath a source file does not know where it is.
func records(t *testing.T) string {
	t.Helper()
	at, err := os.Getwd()
	testutil.Must(t, err)
	for {
		if _, err := os.Stat(filepath.Join(at, "go.mod")); err == nil {
			return filepath.Join(at, "host/schema/testdata/records")
		}
		if at == filepath.Dir(at) {
			t.Fatal("the test does not run in the module's tree")
		}
		at = filepath.Dir(at)
	}
}

func localHost(t *testing.T) host.Host {
	h, err := local.New(local.Config{})
	testutil.Must(t, err)
	return closed(t, h)
}

func remote(t *testing.T) host.Host {
	l := linktest.Run(t, sshtest.Run(t), link.Config{})
	h, err := ssh.New(t.Context(), ssh.Config{Name: "remote.example", Transport: l})
	testutil.Must(t, err)
	return closed(t, h)
}

func closed(t *testing.T, h host.Host) host.Host {
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}
