package node

import (
	"testing"

	"github.com/bowline-k8s/bowline/config"
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
