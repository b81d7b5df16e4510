package twin

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// writeCauses makes a file of causes.
func writeCauses(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "causes.yaml")
	testutil.Must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

func TestCauses(t *testing.T) {
	causes, err := ReadCauses(writeCauses(t, `
- {where: events of .*, scenario: a|b, other: twice, why: one}
- {where: phase, kubelet: nothing, why: two}
- {where: ".*", noise: true, why: three}
`))
	testutil.Must(t, err)
	for _, test := range []struct {
		d     Difference
		noise bool
		want  string
	}{
		{Difference{Scenario: "a", Where: "events of the pod", Other: "reported twice"}, false, "one"},
		{Difference{Scenario: "ab", Where: "events of the pod", Other: "reported twice"}, false, ""},
		{Difference{Scenario: "a", Where: "status, events of the pod", Other: "reported twice"}, false, ""},
		{Difference{Scenario: "a", Where: "events of the pod", Other: "reported once"}, false, ""},
		{Difference{Scenario: "c", Where: "phase", Other: "Failed"}, false, "two"},
		{Difference{Scenario: "c", Where: "phase", Kubelet: "Running"}, false, ""},
		{Difference{Scenario: "c", Where: "phase", Kubelet: "Running"}, true, "three"},
	} {
		if got := Explain(causes, test.d, test.noise); got != test.want {
			t.Errorf("%v, noise %t: %q, not %q", test.d, test.noise, got, test.want)
		}
	}
	for name, bad := range map[string]string{
		"a cause without a why": "- {where: x}", "one without a place": "- {why: x}", "no regular expression": `- {where: "(", why: x}`, "an unknown field": "- {where: x, why: y, wehre: z}",
	} {
		if _, err := ReadCauses(writeCauses(t, bad)); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
}

// A cause is outdated if nothing recorded needs it any more.
func TestEveryCauseIsUsed(t *testing.T) {
	causes, err := ReadCauses("causes.yaml")
	testutil.Must(t, err)
	r, err := ReadResults("../../docs/twin.json")
	testutil.Must(t, err)
	for _, c := range Unused(causes, r["local"], r["ssh"]) {
		if !c.Rare {
			t.Errorf("nothing in docs/twin.json has this cause: %s", c)
		}
	}
	for name, column := range r {
		for _, d := range column.Differences {
			if Explain(causes, d, false) == "" {
				t.Errorf("%s: no cause is known: %s", name, d)
			}
		}
	}
}

// The causes of one kind of scenario explain its known differences, and no wrong status.
func TestCausesAreNarrow(t *testing.T) {
	causes, err := ReadCauses("causes.yaml")
	testutil.Must(t, err)
	for _, d := range []Difference{
		{Scenario: "static", Where: "phase", Kubelet: "Running", Other: "Pending"},
		{Scenario: "static", Where: "phase", Other: "Succeeded"},
		{Scenario: "static", Where: "status at the end: phase", Kubelet: "Running", Other: "Pending"},
		{Scenario: "static-changed", Where: "status at the end: phase", Kubelet: "Running", Other: "Failed"},
		{Scenario: "static", Where: "condition Ready", Kubelet: "True", Other: "False ContainersNotReady"},
		{Scenario: "static", Where: "status before the deletion: conditions[Ready].status", Kubelet: "True", Other: "False"},
		{Scenario: "static", Where: "flags main", Kubelet: "ready true started true", Other: "ready false started true"},
		{Scenario: "static", Where: "lives of main", Kubelet: "1", Other: "2"},
		{Scenario: "static", Where: "status at the end: containerStatuses[main].restartCount", Kubelet: "0", Other: "1"},
		{Scenario: "static-crashes", Where: "status at the end: containerStatuses[main].state.terminated.exitCode", Kubelet: "1", Other: "2"},
		{Scenario: "static-crashes", Where: "status at the end: containerStatuses[main].state.terminated.exitCode", Kubelet: "(absent)", Other: "2"},
		{Scenario: "static-changed", Where: "status at the end: containerStatuses[main].ready", Kubelet: "false", Other: "true"},
		{Scenario: "static-changed", Where: "status at the end: conditions[Initialized].status", Kubelet: "True", Other: "False"},
		{Scenario: "static-changed", Where: "lives of main", Kubelet: "2", Other: "0"},
		{Scenario: "rejected-cpu", Where: "addresses", Other: "hostIP true podIP 1"},
		{Scenario: "rejected-cpu", Where: "condition Ready", Other: "True"},
		{Scenario: "rejected-cpu", Where: "status at the end: conditions[Ready].status", Kubelet: "(absent)", Other: "True"},
		{Scenario: "rejected-cpu", Where: "status at the end: hostIP", Kubelet: "HOSTIP", Other: "(absent)"},
		{Scenario: "rejected-cpu", Where: "status at the end: hostIP", Kubelet: "(absent)", Other: "192.0.2.1"},
		{Scenario: "rejected-cpu", Where: "status at the end: startTime", Kubelet: "(absent)", Other: "TIME"},
		{Scenario: "rejected-cpu", Where: "status at the end: allocatedResources.cpu", Kubelet: "(absent)", Other: "5"},
		{Scenario: "rejected-os", Where: "status at the end: conditions[Ready].reason", Kubelet: "(absent)", Other: "PodSandboxNotReady"},
		{Scenario: "rejected-os", Where: "status at the end: conditions[Ready].type", Kubelet: "(absent)", Other: "Initialized"},
		{Scenario: "poststart-fails", Where: "lives of main", Kubelet: "terminated Error exit 143 signal 0", Other: "terminated Completed exit 0 signal 0"},
		{Scenario: "poststart-fails", Where: "status at the end: containerStatuses[main].state.terminated.exitCode", Kubelet: "143", Other: "0"},
		{Scenario: "poststart-fails", Where: "status at the end: containerStatuses[main].state.terminated.reason", Kubelet: "Error", Other: "Completed"},
		{Scenario: "secret-missing", Where: "events of the pod", Kubelet: "Warning FailedMount (kubelet)", Other: "Normal Pulled (kubelet)"},
	} {
		if why := Explain(causes, d, false); why != "" {
			t.Errorf("%s is explained: %s", d, why)
		}
	}
}

func TestResultsAreKeptByColumn(t *testing.T) {
	path := filepath.Join(t.TempDir(), "twin.json")
	testutil.Must(t, Keep(path, "local", Column{Date: "2026-01-02", Took: "1m", Scenarios: []string{"a", "b"},
		Differences: []Difference{{Scenario: "a", Where: "phase", Kubelet: "x`y", Other: ""}, {Scenario: "b", Where: "order"}},
		Noise:       []Difference{{Scenario: "b", Where: "phase"}}}))
	testutil.Must(t, Keep(path, "ssh", Column{Date: "2026-01-03", Took: "2m", Scenarios: []string{"a"}}))
	r, err := ReadResults(path)
	testutil.Must(t, err)
	causes, err := ReadCauses(writeCauses(t, "- {where: phase, why: By design.}"))
	testutil.Must(t, err)
	var b strings.Builder
	WriteSection(&b, r, causes)
	for _, want := range []string{
		"| Bowline, local socket | 2026-01-02 | 1m | 2 | 2 | 1 | 1 |\n| Bowline, over SSH | 2026-01-03 | 2m | 1 | 0 | 0 | 0 |\n",
		"By design. In a.\n\n- for one, phase of a. The kubelet: `x'y`. Bowline: `(nothing)`.",
		"No reason is known. In b.",
		"### Noise of that run",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("the section lacks %q:\n%s", want, b.String())
		}
	}
}

// TestColumnsAreKeptAtOnce: runs that end at the same time keep their own columns.
func TestColumnsAreKeptAtOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "twin.json")
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			if err := Keep(path, strconv.Itoa(i), Column{}); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if r, err := ReadResults(path); err != nil || len(r) != 20 {
		t.Errorf("%d columns of 20, %v", len(r), err)
	}
}

// The committed causes can be read, and explain every difference of the committed results.
func TestEveryDifferenceHasACause(t *testing.T) {
	causes, err := ReadCauses("causes.yaml")
	testutil.Must(t, err)
	r, err := ReadResults(filepath.Join(root, "docs/twin.json"))
	testutil.Must(t, err)
	for column, c := range r {
		if len(c.Scenarios) < 40 {
			t.Errorf("%s has only %d scenarios", column, len(c.Scenarios))
		}
		for _, d := range c.Differences {
			if Explain(causes, d, false) == "" {
				t.Errorf("%s: no cause is known: %s", column, d)
			}
		}
		for _, d := range c.Noise {
			if Explain(causes, d, true) == "" {
				t.Errorf("%s: the noise has no name: %s", column, d)
			}
		}
	}
}
