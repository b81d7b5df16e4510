package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/lab/cgroups"
	"github.com/bowline-k8s/bowline/lab/internal/testutil"
	"github.com/bowline-k8s/bowline/lab/layout"
)

// busyPod keeps all processors of a host busy. Its liveness probe runs each second.
const busyPod = `{"metadata": {"labels": {"app": "busy"}}, "spec": {"nodeName": %q, "terminationGracePeriodSeconds": 0,
	"containers": [{"name": "busy", "image": "registry.lab/toolbox:lab",
	"command": ["sh", "-c", "for i in $(seq 2 %d); do (while :; do :; done) & done; while :; do :; done"],
	"livenessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1, "timeoutSeconds": 5, "failureThreshold": 3}}]}}`

// testBusyPods: while pods use all the CPU that they get, the machine's programs, the control plane
// and the runtimes work almost as fast as before.
func testBusyPods(t *testing.T, c Config, kubectl func(...string) string) {
	testLabWeight(t, layout.Lab{Dir: c.Dir, Index: c.Index})
	get := func() { kubectl("get", "pods", "-A") }
	exec := func() { kubectl("exec", "box", "--", "true") }
	idleGet, idleExec := typical(get), typical(exec)

	for _, host := range []string{"host1", "host2"} {
		kubectl("run", "busy-"+host, "--image", "registry.lab/toolbox:lab", "--overrides", fmt.Sprintf(busyPod, host, runtime.NumCPU()))
	}
	kubectl("wait", "--for=condition=Ready", "pod", "-l", "app=busy", "--timeout=60s")
	began, before := time.Now(), ticks(t, kubectl)
	busyGet, busyExec := typical(get), typical(exec)
	for time.Since(began) < 10*time.Second { // long enough for several probes
		get()
	}
	took := time.Since(began)

	// A tick is 10 ms. All loops share the machine with everything else on it.
	if spent := time.Duration(ticks(t, kubectl)-before) * 10 * time.Millisecond; spent < took/20 {
		t.Errorf("a busy pod's process had %v of %v: this test shows nothing", spent, took)
	}
	t.Logf("kubectl get takes %v, beside busy pods %v; kubectl exec %v and %v", idleGet, busyGet, idleExec, busyExec)
	if limit := 5*idleGet + 200*time.Millisecond; busyGet > limit {
		t.Errorf("beside busy pods kubectl get typically takes %v, and %v without them", busyGet, idleGet)
	}
	if limit := 5*idleExec + 500*time.Millisecond; busyExec > limit {
		t.Errorf("beside busy pods kubectl exec typically takes %v, and %v without them", busyExec, idleExec)
	}
	if got := kubectl("get", "pods", "-l", "app=busy", "-o", "jsonpath={range .items[*]}{.status.containerStatuses[0].restartCount} {.status.phase} {end}"); got != "0 Running 0 Running" {
		t.Errorf("the busy pods are %q: their probes failed", got)
	}
	kubectl("delete", "pod", "-l", "app=busy", "--timeout=60s")
}

// typical returns the median duration of f. The shortest one would hide that most calls are slow, and
// the longest one shows what else the machine does.
func typical(f func()) time.Duration {
	var took []time.Duration
	for range 8 {
		began := time.Now()
		f()
		took = append(took, time.Since(began))
	}
	return median(took)
}

// median returns the upper median.
func median(of []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

func TestMedian(t *testing.T) {
	most := []time.Duration{1, 40, 40, 40, 40, 40, 40, 40}
	if got := median(most); got != 40 {
		t.Errorf("of %v it is %v: one quick call hides the slow ones", most, got)
	}
	if got := median([]time.Duration{40, 1, 2, 1, 2, 1, 2, 1}); got != 2 {
		t.Errorf("one slow call counts: %v", got)
	}
}

// ticks returns the user time, in clock ticks, of the processes of a busy pod.
func ticks(t *testing.T, kubectl func(...string) string) int {
	t.Helper()
	sum := 0
	for line := range strings.Lines(kubectl("exec", "busy-host1", "--", "sh", "-c", "cat /proc/[0-9]*/stat 2>/dev/null || :")) { // a process may end meanwhile
		_, after, _ := strings.Cut(line, ") ")
		fields := strings.Fields(after)
		if len(fields) < 12 {
			t.Fatalf("a line of /proc/PID/stat ends in %q", after)
		}
		n, err := strconv.Atoi(fields[11])
		testutil.Must(t, err)
		sum += n
	}
	return sum
}

// testLabWeight: the whole lab weighs no more than one process of the machine.
func testLabWeight(t *testing.T, lab layout.Lab) {
	t.Helper()
	hierarchies, err := cgroups.Mounted()
	testutil.Must(t, err)
	found := false
	for _, h := range hierarchies {
		for file, most := range map[string]int{"cpu.shares": 1024, "cpu.weight": 100} {
			data, err := os.ReadFile(filepath.Join(h.Mount, lab.Name(), file))
			if err != nil {
				continue // the file belongs to another hierarchy
			}
			found = true
			if n, err := strconv.Atoi(strings.TrimSpace(string(data))); err != nil || n > most {
				t.Errorf("the lab's %s is %q, want %d at most", file, data, most)
			}
		}
	}
	if !found {
		t.Error("the lab has no weight in any hierarchy")
	}
}
