package connect

import (
	"context"
	"io/fs"
	"testing"

	"github.com/bowline-k8s/bowline/host"
)

// links are the files and symbolic links of a host.
type links map[string]string

func (l links) Stat(_ context.Context, p string) (host.FileInfo, error) {
	target, ok := l[p]
	switch {
	case !ok:
		return host.FileInfo{}, fs.ErrNotExist
	case target != "":
		return host.FileInfo{Mode: fs.ModeSymlink | 0o777, Target: target}, nil
	}
	return host.FileInfo{Mode: 0o755}, nil
}

func TestRealPath(t *testing.T) {
	m := links{"/var": "", "/var/run": "../run", "/run": "", "/run/c.sock": "", "/var/lib": "", "/var/lib/kubelet": "/data/./kubelet/", "/data": "",
		"/data/kubelet": "real", "/data/real": "", "/loop": "/loop", "/up": "../../../run"}
	for p, want := range map[string]string{
		"/run/c.sock":             "/run/c.sock",
		"/var/run/c.sock":         "/run/c.sock",
		"/var/lib/kubelet":        "/data/real",
		"/var/lib/kubelet/a/b":    "/data/real/a/b",
		"/var/lib/none/../x":      "/var/lib/x",
		"/up/c.sock":              "/run/c.sock",
		"/var/run/containerd/new": "/run/containerd/new",
	} {
		if got, err := RealPath(t.Context(), m, p); got != want || err != nil {
			t.Errorf("%s is %s (%v), want %s", p, got, err, want)
		}
	}
	if got, err := RealPath(t.Context(), m, "/loop/x"); err == nil {
		t.Errorf("a loop led to %s", got)
	}
}
