package monitoring

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// promtool runs promtool in the chart's directory of alerts.
func (r *rig) promtool(t *testing.T, stdin io.Reader, args ...string) (output string, err error) {
	cmd := exec.CommandContext(t.Context(), r.tool("promtool"), args...)
	cmd.Dir, cmd.Stdin = chartFiles, stdin
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// testAlerts checks the chart's alerts: promtool accepts and tests them, Prometheus evaluates each without an
// error, and none fires while all hosts are well.
func (m *monitor) testAlerts(t *testing.T) {
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts-test.yaml"}} {
		if out, err := m.promtool(t, nil, args...); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	resp, err := http.Get(m.url + "/api/v1/rules?type=alert")
	testutil.Must(t, err)
	defer resp.Body.Close()
	var answer struct {
		Data struct {
			Groups []struct {
				Name  string
				Rules []struct{ Name, Health, LastError, State string }
			}
		}
	}
	testutil.Must(t, json.NewDecoder(resp.Body).Decode(&answer))
	evaluated := 0
	for _, g := range answer.Data.Groups {
		if g.Name != "bowline" {
			continue
		}
		for _, rule := range g.Rules {
			evaluated++
			if rule.Health != "ok" || rule.State == "firing" {
				t.Errorf("the alert %s is %s, and its evaluation is %s: %s", rule.Name, rule.State, rule.Health, rule.LastError)
			}
		}
	}
	if evaluated == 0 {
		t.Error("Prometheus has no alerts of the chart")
	}
}

// testLint passes the text of each endpoint to promtool, which knows the conventions of Prometheus. It fails
// for a finding that is not in lintOfKubelets, and for a parse error.
func (r *rig) testLint(t *testing.T) {
	for _, node := range []string{localHost, remoteHost} {
		for _, path := range paths {
			text, err := r.lab.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes", node, "proxy"+path).DoRaw(t.Context())
			testutil.Must(t, err)
			r.lint(t, node+path, text)
		}
		text, err := get(t.Context(), "http://"+r.processes[node]+"/metrics")
		testutil.Must(t, err)
		r.lint(t, "the process of "+node, text)
	}
}

// lintOfKubelets are the metrics of a node that promtool objects to, each with the kubelet's reason to keep them:
// a node has its names, types and labels (TestFamilies of package node).
var lintOfKubelets = map[string]string{
	"cadvisor_version_info":       "cAdvisor names these labels so",
	"container_fs_inodes_total":   "cAdvisor has this gauge, which is a total of inodes",
	"container_memory_failcnt":    "cAdvisor has this counter, which is named as in memory.failcnt",
	"kubelet_evictions":           "a kubelet has this counter, from before the convention",
	"kubelet_preemptions":         "a kubelet has this counter, from before the convention",
	"kubelet_pleg_discard_events": "a kubelet has this counter, from before the convention",
	"kubelet_certificate_manager_client_expiration_renew_errors": "a kubelet has this counter, from before the convention",
	"kubelet_server_expiration_renew_errors":                     "a kubelet has this counter, from before the convention",
	"kubelet_pod_resize_duration_milliseconds":                   "a kubelet measures it in this unit",
}

func (r *rig) lint(t *testing.T, where string, text []byte) {
	t.Helper()
	out, err := r.promtool(t, bytes.NewReader(text), "check", "metrics")
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	findings := 0
	for line := range strings.Lines(out) {
		findings++
		name, finding, _ := strings.Cut(strings.TrimSpace(line), " ")
		if reason := lintOfKubelets[name]; reason != "" {
			t.Logf("%s: %s %s, but %s", where, name, finding, reason)
		} else {
			t.Errorf("%s: %s %s", where, name, finding)
		}
	}
	if err != nil && findings == 0 {
		t.Errorf("%s: promtool: %v", where, err)
	}
	t.Logf("%s: %d bytes, %d findings", where, len(text), findings)
}

// get returns the body of a page without credentials.
func get(ctx context.Context, url string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", url, resp.Status)
	}
	return body, err
}
