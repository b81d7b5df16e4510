package main

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
)

// host clear deletes every Host of a cluster, so it asks at a terminal or needs --yes.
func TestHostClearAsks(t *testing.T) {
	a := &hostAPI{hosts: map[string]*v1alpha1.Host{}}
	way := a.serve(t)
	for _, name := range []string{"box-1", "box-2"} {
		h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		h.Spec.Endpoint = "ssh://root@" + name + "/s"
		a.hosts[name] = h
	}
	clear := func(args ...string) (string, string, int) {
		return typed(t, append(append([]string{"host", "clear"}, args...), way...)...)
	}
	out, errOut, status := clear()
	if status != 1 || len(a.hosts) != 2 || !strings.Contains(errOut, "nothing was deleted") || !strings.Contains(errOut, "--yes") {
		t.Errorf("unasked: status %d, %d Hosts are left, %q", status, len(a.hosts), errOut)
	}
	for _, line := range []string{"These Hosts will be deleted:\n", "  box-1 (drain): ssh://root@box-1/s\n", "  box-2 (drain): "} {
		if !strings.Contains(out, line) {
			t.Errorf("it does not list %q: %q", line, out)
		}
	}
	if out, _, _ := clear("--detach", "--except", "box-1"); strings.Contains(out, "box-1") || !strings.Contains(out, "  box-2 (detach): ") {
		t.Errorf("some: %q", out)
	}
	if out, errOut, status := clear("--yes"); status != 0 || len(a.hosts) != 0 || !strings.Contains(out, "box-1: it is being deleted") || !strings.HasSuffix(out, "No Hosts are left to delete.\n") {
		t.Errorf("--yes: status %d, %d Hosts are left, %q %q", status, len(a.hosts), out, errOut)
	}
	if out, errOut, status := clear(); status != 0 {
		t.Errorf("of none: status %d, %q %q", status, out, errOut)
	}
	a.without = true
	for _, args := range [][]string{nil, {"--yes"}} {
		if out, errOut, status := clear(args...); status != 0 || strings.Contains(out, "Will retry") {
			t.Errorf("%v, in a cluster without the resource: status %d, %q %q", args, status, out, errOut)
		}
	}
}
