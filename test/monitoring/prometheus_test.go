package monitoring

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// interval is the time between two scrapes of a target.
const interval = 15 * time.Second

// paths are a node's endpoints for Prometheus.
var paths = []string{"/metrics", "/metrics/cadvisor", "/metrics/resource", "/metrics/probes", "/metrics/slis"}

// monitor is a Prometheus that scrapes the nodes.
type monitor struct {
	*rig
	url string
	log string
}

// startPrometheus runs Prometheus with the jobs of kube-prometheus.
func (r *rig) startPrometheus() *monitor {
	address, err := labtest.FreeAddress()
	testutil.Must(r.t, err)
	nodeExporter, err := labtest.FreeAddress()
	testutil.Must(r.t, err)
	state := r.serveState()
	r.run("node-exporter", r.tool("prometheus-node-exporter"), "--web.listen-address="+nodeExporter)

	dir := filepath.Join(r.dir, "prometheus")
	testutil.Must(r.t, os.MkdirAll(dir, 0o755))
	rules, err := filepath.Abs("testdata/rules.yaml")
	testutil.Must(r.t, err)
	alerts, err := filepath.Abs(filepath.Join(chartFiles, "alerts.yaml"))
	testutil.Must(r.t, err)
	config := filepath.Join(dir, "prometheus.yaml")
	testutil.Must(r.t, os.WriteFile(filepath.Join(dir, "token"), []byte(r.token), 0o600))
	testutil.Must(r.t, os.WriteFile(config, []byte(r.prometheusConfig(dir, []string{rules, alerts}, state, nodeExporter)), 0o600))
	if out, err := exec.CommandContext(r.t.Context(), r.tool("promtool"), "check", "config", config).CombinedOutput(); err != nil {
		r.t.Fatalf("promtool: %v\n%s", err, out)
	}
	m := &monitor{rig: r, url: "http://" + address}
	m.log = r.run("prometheus", r.tool("prometheus"), "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address)
	until(r.t, time.Minute, "Prometheus to be ready", func(ctx context.Context) error {
		_, err := m.query(ctx, "1")
		return err
	})
	return m
}

// prometheusConfig scrapes the nodes under the job's name and with the labels that kube-prometheus
// gives them, and the processes as the chart's PodMonitor does.
func (r *rig) prometheusConfig(dir string, rules []string, state, nodeExporter string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "global: {scrape_interval: %s, evaluation_interval: %s}\nrule_files: [%s]\nscrape_configs:\n", interval, interval, strings.Join(rules, ", "))
	for i, path := range paths {
		fmt.Fprintf(&b, `- job_name: kubelet-%d
  scheme: https
  metrics_path: %s
  honor_labels: true
  honor_timestamps: %v
  tls_config: {ca_file: %s}
  authorization: {credentials_file: %s}
  relabel_configs:
  - {source_labels: [__metrics_path__], target_label: metrics_path}
  - {target_label: job, replacement: kubelet}
  static_configs:
`, i, path, path != "/metrics/cadvisor", r.ca, filepath.Join(dir, "token"))
		for _, node := range []string{localHost, remoteHost} {
			fmt.Fprintf(&b, "  - {targets: [%q], labels: {node: %s}}\n", r.nodeAddress(r.t, node), node)
		}
	}
	fmt.Fprintf(&b, "- {job_name: bowline, honor_labels: true, static_configs: [{targets: [%q, %q]}]}\n", r.processes[localHost], r.processes[remoteHost])
	fmt.Fprintf(&b, "- {job_name: kube-state-metrics, honor_labels: true, static_configs: [{targets: [%q]}]}\n", state)
	fmt.Fprintf(&b, "- {job_name: node-exporter, static_configs: [{targets: [%q]}]}\n", nodeExporter)
	return b.String()
}

// sample is a series of a query's result.
type sample struct {
	Metric map[string]string `json:"metric"`
	Value  [2]any            `json:"value"` // time, and the number as a string
}

// query evaluates an expression now.
func (m *monitor) query(ctx context.Context, expression string) ([]sample, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url+"/api/v1/query?query="+url.QueryEscape(expression), nil)
	if err != nil {
		return nil, err
	}
	resp, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var answer struct {
		Status, Error string
		Data          struct {
			ResultType string          `json:"resultType"`
			Result     json.RawMessage `json:"result"`
		}
	}
	if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil {
		return nil, fmt.Errorf("%s: %w", expression, err)
	}
	if answer.Status != "success" {
		return nil, fmt.Errorf("%s: %s", expression, answer.Error)
	}
	if answer.Data.ResultType == "scalar" {
		var one sample
		err := json.Unmarshal(answer.Data.Result, &one.Value)
		if err != nil || one.Value[1] == "NaN" { // scalar() of no series
			return nil, err
		}
		return []sample{one}, nil
	}
	var samples []sample
	return samples, json.Unmarshal(answer.Data.Result, &samples)
}

// testScrapes waits until each endpoint has been scraped for length, and checks that no scrape failed
// and that Prometheus took every sample.
func (m *monitor) testScrapes(t *testing.T, length time.Duration) {
	wanted := int(length / interval)
	targets := 2 * len(paths)
	until(t, length+5*time.Minute, fmt.Sprintf("%d scrapes of each endpoint", wanted), func(ctx context.Context) error {
		enough, err := m.query(ctx, fmt.Sprintf(`count_over_time(up{job="kubelet"}[2h]) >= %d`, wanted))
		if err == nil && len(enough) != targets {
			err = fmt.Errorf("%d of %d endpoints have been scraped that often", len(enough), targets)
		}
		return err
	})
	for _, wrong := range []string{
		`min_over_time(up{job=~"kubelet|bowline"}[2h]) < 1`,
		`min_over_time(scrape_samples_scraped{job="kubelet", metrics_path!="/metrics/probes"}[2h]) < 1`,
		`max_over_time(resource_scrape_error{job="kubelet"}[2h]) > 0`,
		`max_over_time(container_scrape_error{job="kubelet"}[2h]) > 0`,
	} {
		samples, err := m.query(t.Context(), wrong)
		testutil.Must(t, err)
		for _, s := range samples {
			t.Errorf("%s: %v %v", wrong, s.Metric, s.Value[1])
		}
	}
	if t.Failed() {
		t.Logf("the scrapes' last errors: %v", m.lastErrors(t))
	}
	durations, err := m.query(t.Context(), `sort_desc(quantile_over_time(0.95, scrape_duration_seconds{job="kubelet"}[2h]))`)
	testutil.Must(t, err)
	for _, s := range durations {
		t.Logf("95 %% of the scrapes of %s of %s took at most %v s", s.Metric["metrics_path"], s.Metric["node"], s.Value[1])
	}
	file, err := os.Open(m.log)
	testutil.Must(t, err)
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if strings.Contains(lines.Text(), "level=warn") || strings.Contains(lines.Text(), "level=error") {
			t.Errorf("Prometheus says: %s", lines.Text())
		}
	}
}

// lastErrors returns why the last scrape of each endpoint failed, by its URL.
func (m *monitor) lastErrors(t *testing.T) map[string]string {
	resp, err := http.Get(m.url + "/api/v1/targets")
	testutil.Must(t, err)
	defer resp.Body.Close()
	var answer struct {
		Data struct {
			ActiveTargets []struct{ ScrapeURL, LastError string }
		}
	}
	testutil.Must(t, json.NewDecoder(resp.Body).Decode(&answer))
	failed := map[string]string{}
	for _, target := range answer.Data.ActiveTargets {
		if target.LastError != "" {
			failed[target.ScrapeURL] = target.LastError
		}
	}
	return failed
}
