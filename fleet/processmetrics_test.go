package fleet

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/client-go/rest"
	promtest "k8s.io/component-base/metrics/testutil"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/kubeclient"
	"github.com/bowline-k8s/bowline/kubeletmetrics/kubelettest"
	"github.com/bowline-k8s/bowline/node"
	"github.com/bowline-k8s/bowline/pool"
	"github.com/bowline-k8s/bowline/version"
)

// TestValuesOfHosts: what the process serves about a local host, a remote one, one whose link is down, and
// those that have no node.
func TestValuesOfHosts(t *testing.T) {
	r := registryOf(newOperations(), map[string]pool.State{
		"local": {Phase: pool.Managed}, "remote": {Phase: pool.Managed}, "down": {Phase: pool.Managed},
		"broken": {Phase: pool.Failed, Err: errors.New("no")}, "hostile": {Phase: pool.Quarantined},
	}, map[string]node.State{
		"local":  {ObservedAt: time.Now().Add(-time.Hour)},
		"remote": {Link: &link.State{Up: true, RTT: 40 * time.Millisecond, Connection: 3, Read: 100, Written: 50}},
		"down":   {Link: &link.State{}},
	})
	b := version.This()
	want := `
# HELP bowline_build_info [ALPHA] A constant 1, with the version of Bowline.
# TYPE bowline_build_info gauge
bowline_build_info{commit="` + b.Commit + `",go_version="` + b.Go + `",version="` + b.Version + `"} 1
# HELP bowline_host_link_bytes_total [ALPHA] The bytes of all SSH connections to a remote host, since Bowline last started to manage it.
# TYPE bowline_host_link_bytes_total counter
bowline_host_link_bytes_total{direction="received",host="down"} 0
bowline_host_link_bytes_total{direction="received",host="remote"} 100
bowline_host_link_bytes_total{direction="sent",host="down"} 0
bowline_host_link_bytes_total{direction="sent",host="remote"} 50
# HELP bowline_host_link_reconnects_total [ALPHA] How often the link to a remote host was connected again, since Bowline last started to manage the host.
# TYPE bowline_host_link_reconnects_total counter
bowline_host_link_reconnects_total{host="down"} 0
bowline_host_link_reconnects_total{host="remote"} 2
# HELP bowline_host_link_rtt_seconds [ALPHA] The round trip of the last keepalive on the link to a remote host.
# TYPE bowline_host_link_rtt_seconds gauge
bowline_host_link_rtt_seconds{host="remote"} 0.04
# HELP bowline_host_link_up [ALPHA] Whether the link to a remote host is up.
# TYPE bowline_host_link_up gauge
bowline_host_link_up{host="down"} 0
bowline_host_link_up{host="remote"} 1
# HELP bowline_hosts [ALPHA] The number of hosts by their state in this process.
# TYPE bowline_hosts gauge
bowline_hosts{state="Ending"} 0
bowline_hosts{state="Failed"} 1
bowline_hosts{state="Managed"} 3
bowline_hosts{state="Quarantined"} 1
bowline_hosts{state="Waiting"} 0
`
	if err := promtest.GatherAndCompare(r, strings.NewReader(want), "bowline_hosts", "bowline_host_link_up", "bowline_host_link_rtt_seconds",
		"bowline_host_link_reconnects_total", "bowline_host_link_bytes_total", "bowline_build_info"); err != nil {
		t.Error(err)
	}
	families, err := r.Gather()
	testutil.Must(t, err)
	for _, f := range families {
		if f.GetName() != "bowline_host_observation_age_seconds" {
			continue
		}
		if age := f.Metric[0].GetGauge().GetValue(); len(f.Metric) != 1 || f.Metric[0].Label[0].GetValue() != "local" || age < 3600 || age > 3660 {
			t.Errorf("the ages are %v: only local was observed, an hour ago", f.Metric)
		}
		return
	}
	t.Error("the age of the observation is not served")
}

// served are the families of a process with a remote host that has exceeded a budget. It has made a call to
// the host and one to an API server.
func served(t *testing.T) map[string]*dto.MetricFamily {
	t.Helper()
	o := newOperations()
	o.of("box").add("host/Stat", time.Second, errors.New("no"))
	r := registryOf(o, nil, map[string]node.State{"box": {ObservedAt: time.Now(), Link: &link.State{Up: true, RTT: time.Second}}})
	b := &hostBudgets{byHost: map[string]*hostBudget{}}
	account := budget.New(budget.Limits{})
	b.begin("box", account)
	b.exceeded("box", account.Exceed(budget.Items, "a list"))
	r.CustomMustRegister(b)

	api := httptest.NewServer(http.NotFoundHandler())
	defer api.Close()
	client, err := kubeclient.New(&rest.Config{Host: api.URL})
	testutil.Must(t, err)
	_, _ = client.Discovery().ServerVersion() // only the request counts

	w := httptest.NewRecorder()
	node.ProcessMetrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	parser := expfmt.NewTextParser(model.LegacyValidation)
	out, err := parser.TextToMetricFamilies(bytes.NewReader(w.Body.Bytes()))
	testutil.Must(t, err)
	own, err := r.Gather()
	testutil.Must(t, err)
	for _, f := range own {
		out[f.GetName()] = f
	}
	return out
}

var (
	metricRow  = regexp.MustCompile("(?m)^\\| (`[a-z_*]+(?:\\{[a-z_,]+\\})?`(?:, `[a-z_*]+`)*) \\| ([a-z]*) ?\\| .+ \\|$")
	metricName = regexp.MustCompile("`([a-z_*]+)(?:\\{([a-z_,]+)\\})?`")
)

// documented is a row of the table of metrics in docs/monitoring.md.
type documented struct {
	kind   string
	labels []string
}

// documentedMetrics are the rows by name, or by pattern.
func documentedMetrics(t *testing.T) map[string]documented {
	t.Helper()
	_, section, ok := strings.Cut(string(testutil.ReadFile(t, "../docs/monitoring.md")), "\n| metric | type | meaning |\n|---|---|---|\n")
	if !ok {
		t.Fatal("docs/monitoring.md has no table of the process's metrics")
	}
	table, _, _ := strings.Cut(section, "\n\n")
	rows := metricRow.FindAllStringSubmatch(table, -1)
	if lines := strings.Count(table, "\n") + 1; len(rows) != lines {
		t.Errorf("only %d of %d rows of the table can be read", len(rows), lines)
	}
	out := map[string]documented{}
	for _, row := range rows {
		for _, name := range metricName.FindAllStringSubmatch(row[1], -1) {
			d := documented{kind: row[2]}
			if name[2] != "" {
				d.labels = strings.Split(name[2], ",")
			}
			out[name[1]] = d
		}
	}
	return out
}

// TestDocumentedMetrics: the process serves the families that docs/monitoring.md lists, with their types and
// labels, and no others.
func TestDocumentedMetrics(t *testing.T) {
	rows, families := documentedMetrics(t), served(t)
	patterns, used := slices.Collect(maps.Keys(rows)), map[string]bool{}
	for name, f := range families {
		i := slices.IndexFunc(patterns, func(pattern string) bool { ok, _ := path.Match(pattern, name); return ok })
		if i < 0 {
			t.Errorf("docs/monitoring.md does not have %s", name)
			continue
		}
		pattern := patterns[i]
		used[pattern] = true
		if strings.Contains(pattern, "*") || !strings.HasPrefix(name, "bowline_") {
			continue
		}
		row := rows[pattern]
		if kind := strings.ToLower(f.GetType().String()); kind != row.kind {
			t.Errorf("%s is a %s, docs/monitoring.md has a %s", name, kind, row.kind)
		}
		for _, m := range f.Metric {
			var labels []string
			for _, l := range m.Label {
				labels = append(labels, l.GetName())
			}
			slices.Sort(labels)
			if want := slices.Sorted(slices.Values(row.labels)); !slices.Equal(labels, want) {
				t.Errorf("%s has the labels %v, in docs/monitoring.md %v", name, labels, want)
			}
		}
	}
	for name := range rows {
		if !used[name] {
			t.Errorf("docs/monitoring.md has %s, which the process does not serve", name)
		}
	}
	if len(families) < 20 {
		t.Errorf("only %d families are served", len(families))
	}
}

var (
	// notMetrics are the parts of an expression that hold no metric: strings, matchers, ranges, and the labels
	// of groups and joins.
	notMetrics = regexp.MustCompile(`"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring|group_left|group_right) *\([^)]*\)`)
	identifier = regexp.MustCompile(`\b[A-Za-z_:][A-Za-z0-9_:]*\b *\(?`)
)

// metricsOf are the metrics that an expression asks for.
func metricsOf(expression string) []string {
	var out []string
	for _, word := range identifier.FindAllString(notMetrics.ReplaceAllString(expression, " "), -1) {
		if function := strings.HasSuffix(word, "("); !function && !slices.Contains([]string{"and", "or", "unless", "bool"}, strings.TrimSpace(word)) {
			out = append(out, strings.TrimSpace(word))
		}
	}
	return out
}

// TestChartAsksForWhatIsServed: each metric in the alerts, in their tests and in the dashboard of the chart is
// one of the process, or of a node as on a kubelet.
func TestChartAsksForWhatIsServed(t *testing.T) {
	families, kubelet := served(t), kubelettest.Families()
	asked := 0
	check := func(where, expression string) {
		for _, name := range metricsOf(expression) {
			if name == "ALERTS" { // of Prometheus, in the tests
				continue
			}
			asked++
			base := name
			for _, suffix := range []string{"_bucket", "_count", "_sum"} {
				if trimmed, cut := strings.CutSuffix(name, suffix); cut && families[trimmed].GetType() == dto.MetricType_HISTOGRAM {
					base = trimmed
				}
			}
			if families[base] == nil && kubelet[base].Name == "" {
				t.Errorf("%s asks for %s, which nothing serves", where, name)
			}
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	testutil.Must(t, yaml.Unmarshal(testutil.ReadFile(t, "../charts/bowline/files/alerts.yaml"), &rules))
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			check(r.Alert, r.Expr)
		}
	}
	var tests struct {
		Tests []struct {
			InputSeries []struct{ Series string } `json:"input_series"`
			Exprs       []struct{ Expr string }   `json:"promql_expr_test"`
		}
	}
	testutil.Must(t, yaml.Unmarshal(testutil.ReadFile(t, "../charts/bowline/files/alerts-test.yaml"), &tests))
	for _, of := range tests.Tests {
		for _, s := range of.InputSeries {
			check("alerts-test.yaml", s.Series)
		}
		for _, e := range of.Exprs {
			check("alerts-test.yaml", e.Expr)
		}
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	testutil.Must(t, json.Unmarshal(testutil.ReadFile(t, "../charts/bowline/files/dashboard.json"), &dashboard))
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			check("the panel "+p.Title, target.Expr)
		}
	}
	if asked < 25 {
		t.Errorf("only %d metrics were found in the chart's files", asked)
	}
	got := metricsOf(`topk(10, histogram_quantile(0.95, sum by (host, le) (rate(a_bucket{job="x_y"}[5m]))) > 0) and on (job) b or absent(c:d) / 1e3`)
	if want := []string{"a_bucket", "b", "c:d"}; !slices.Equal(got, want) {
		t.Errorf("the metrics are %q, want %q", got, want)
	}
}
