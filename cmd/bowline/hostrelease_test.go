package main

import (
	"testing"

	"github.com/bowline-k8s/bowline/release"
)

// TestStepText: each step of a release is a line of its own.
func TestStepText(t *testing.T) {
	for _, c := range []struct {
		step release.Step
		want string
	}{
		{release.Step{What: release.Recognized, Object: "node \"n\" of cluster c"}, `This host is node "n" of cluster c.`},
		{release.Step{What: release.NoNode}, "This host has no node of Bowline."},
		{release.Step{What: release.NodeMissing, Object: "n"}, `The cluster has no node "n" any more.`},
		{release.Step{What: release.NodeForeign, Object: "n"}, `The cluster's node "n" does not belong to Bowline: it and its pods stay.`},
		{release.Step{What: release.Cordoned, Object: "n"}, "Node n is cordoned."},
		{release.Step{What: release.Evicted, Object: "shop/web-0"}, "evicted shop/web-0"},
		{release.Step{What: release.Stopping, Object: "shop/web-0"}, "stopping shop/web-0"},
		{release.Step{What: release.HookFailed, Object: "shop/web-0", Container: "app"}, "preStop of app in shop/web-0 failed"},
		{release.Step{What: release.Undone, Object: "removed /etc/x"}, "removed /etc/x"},
		{release.Step{What: release.NodeDeleted, Object: "n"}, "Node n is deleted."},
	} {
		if got := stepText(c.step); got != c.want {
			t.Errorf("%+v: %q, want %q", c.step, got, c.want)
		}
	}
}
