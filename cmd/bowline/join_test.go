package main

import (
	"os"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/mountns"
)

func TestJoinIsCalledRightly(t *testing.T) {
	for _, args := range [][]string{{"join", "/run/s", "run"}, {"join", "--", "/run/s", "run"}, {"join", "/run/s"}} {
		if _, err := command(t, args...); err == nil {
			t.Errorf("%q is taken", args)
		}
	}
}

// TestChartJoins: the chart names the pod's own files by the paths that a joined process sees.
func TestChartJoins(t *testing.T) {
	made, err := os.ReadFile("../../charts/testdata/local.yaml")
	testutil.Must(t, err)
	paths := strings.Split(string(made), "/proc/self/fd/")[1:]
	for _, p := range paths {
		if !strings.HasPrefix("/proc/self/fd/"+p, mountns.PodRoot+"/") {
			t.Errorf("/proc/self/fd/%.60s", p)
		}
	}
	if !strings.Contains(string(made), mountns.PodRoot+mountns.AccountFile) || len(paths) == 0 {
		t.Errorf("the account's file %s%s is not used", mountns.PodRoot, mountns.AccountFile)
	}
}
