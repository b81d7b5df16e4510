package node

import (
	"context"
	"io/fs"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
)

func TestSwapAllowed(t *testing.T) {
	on, off := true, false
	for _, c := range []struct {
		fail  *bool
		swaps []string
		want  string
	}{
		{&on, nil, ""},
		{&off, []string{"/swapfile"}, ""},
		{&on, []string{"/dev/sda2", "/swapfile"}, "swap is on (/dev/sda2, /swapfile). Turn it off with swapoff -a, or set failSwapOn to false, so that containers get no swap"},
	} {
		cfg := &config.Host{}
		cfg.FailSwapOn = c.fail
		got := ""
		if err := swapAllowed(cfg, host.Facts{Swaps: c.swaps}); err != nil {
			got = hint.Text(err)
		}
		if got != c.want {
			t.Errorf("failSwapOn %v, %v: %q", *c.fail, c.swaps, got)
		}
	}
}

// swapping is a host on which swap is on.
type swapping struct{ host.Host }

func (swapping) Stat(context.Context, string) (host.FileInfo, error) {
	return host.FileInfo{}, fs.ErrNotExist
}
func (swapping) Facts(context.Context) (host.Facts, error) {
	return host.Facts{Hostname: "box", Swaps: []string{"/swapfile"}}, nil
}

// A node refuses such a host before it claims it.
func TestRecognizeRefusesSwap(t *testing.T) {
	for _, fail := range []bool{true, false} {
		cfg := &config.Host{Endpoint: "unix:///run/c.sock", RootDirectory: "/var/lib/kubelet"}
		cfg.FailSwapOn = &fail
		n := newNode(cfg)
		n.host = &connect.Host{Host: swapping{}}
		_, err := n.recognize(t.Context(), nil)
		if (err != nil) != fail || fail && !strings.Contains(err.Error(), "swap is on (/swapfile)") {
			t.Errorf("failSwapOn %v: %v", fail, err)
		}
	}
}
