package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// noData are parts of queries that have no data on a kubelet either, with the reason.
var noData = map[string]string{
	"kubelet_node_config_error":      "no kubelet of this version has the series",
	"storage_operation_errors_total": "no kubelet of this version has the series",
	`code=~"3.."`:                    "the API server has not answered so",
	`code=~"5.."`:                    "the API server has not answered so",
}

// noDataOfHosts are the queries of the chart's dashboard that have no data while all hosts are well.
var noDataOfHosts = map[string]string{
	"bowline_host_link_up == 0":      "no link is down",
	"bowline_host_quarantines_total": "no host is quarantined",
}

// exempt returns why a query may have no data; empty if it must have some.
func exempt(expression string, ioCounted bool) string {
	for part, reason := range noData {
		if strings.Contains(expression, part) {
			return reason
		}
	}
	if !ioCounted && (strings.Contains(expression, "container_fs_reads") || strings.Contains(expression, "container_fs_writes")) {
		return "the kernel counts no I/O of control groups"
	}
	return ""
}

// ioCounted reports whether the kernel counts the I/O of control groups: it names devices then.
func ioCounted() bool {
	for _, file := range []string{"/sys/fs/cgroup/io.stat", "/sys/fs/cgroup/blkio/blkio.throttle.io_service_bytes_recursive"} {
		data, err := os.ReadFile(file)
		if err == nil && strings.Contains(string(data), ":") {
			return true
		}
	}
	return false
}

// asked is a query and what it returned on each node, or of all processes.
type asked struct {
	query   string
	results []string
}

// ask evaluates a query and says what it returned. One without data and without a reason fails the test.
func (m *monitor) ask(t *testing.T, where, query, reason string) string {
	t.Helper()
	samples, err := m.query(t.Context(), query)
	switch {
	case err != nil:
		t.Errorf("%s: %v", where, err)
	case len(samples) > 0:
		t.Logf("%s: %d series: %s", where, len(samples), query)
		return "data"
	case reason != "":
		t.Logf("%s: no data, as %s: %s", where, reason, query)
		return "none: " + reason
	default:
		t.Errorf("%s: no data: %s", where, query)
	}
	return "failed"
}

// testQueries checks that each query of the dashboards returns data, for a pod of each node, and each of the
// chart's dashboard.
func (m *monitor) testQueries(t *testing.T) {
	var dashboards map[string][]string
	testutil.Must(t, yaml.UnmarshalStrict(testutil.ReadFile(t, "testdata/dashboards.yaml"), &dashboards))
	if len(dashboards) == 0 {
		t.Fatal("no dashboards")
	}
	counted := ioCounted()
	all := map[string][]asked{}
	for name, queries := range dashboards {
		for _, query := range queries {
			a := asked{query: query}
			for _, node := range []string{localHost, remoteHost} {
				variables := strings.NewReplacer("$__rate_interval", "5m", "$cluster", "", "$namespace", namespace, "$instance", ".+",
					"$node", node, "$pod", "work-"+node, "$volume", "claim-"+node, "$workload", "served", "$type", "deployment")
				a.results = append(a.results, m.ask(t, name+", "+node, variables.Replace(query), exempt(query, counted)))
			}
			all[name] = append(all[name], a)
		}
	}
	var own []asked
	for _, query := range chartQueries(t) {
		reason := ""
		for part, why := range noDataOfHosts {
			if strings.Contains(query, part) {
				reason = why
			}
		}
		own = append(own, asked{query, []string{m.ask(t, "the chart's dashboard", query, reason)}})
	}
	if os.Getenv("BOWLINE_MONITORING_WRITE") != "" && !t.Failed() {
		testutil.Must(t, os.WriteFile("../../docs/monitoring-queries.md", []byte(report(all, own)), 0o644))
	}
}

// chartFiles has the alerts and the dashboard of the chart.
const chartFiles = "../../charts/bowline/files"

// chartQueries are the queries of the chart's dashboard.
func chartQueries(t *testing.T) []string {
	t.Helper()
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	testutil.Must(t, json.Unmarshal(testutil.ReadFile(t, filepath.Join(chartFiles, "dashboard.json")), &dashboard))
	var queries []string
	for _, p := range dashboard.Panels {
		for _, target := range p.Targets {
			queries = append(queries, target.Expr)
		}
	}
	if len(queries) == 0 {
		t.Fatal("the chart's dashboard has no queries")
	}
	return queries
}

// report is docs/monitoring-queries.md.
func report(all map[string][]asked, own []asked) string {
	var b strings.Builder
	b.WriteString("# Queries of dashboards\n\nWhat a Prometheus returned for each query of kubernetes-mixin's dashboards of kubelets, for a pod on a local node and for one on a node over SSH, and for each query of the chart's own dashboard. `BOWLINE_MONITORING_WRITE=1 make monitoring` writes this file from its run; it fails, and writes nothing, if a query without a reason has no data.\n")
	table := func(title, head string, rows []asked) {
		fmt.Fprintf(&b, "\n## %s\n\n| query | %s |\n|---|%s\n", title, head, strings.Repeat("---|", strings.Count(head, "|")+1))
		for _, r := range rows {
			// GitHub ends a cell at a bar even within code.
			fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(r.query, "|", `\|`), strings.Join(r.results, " | "))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		table(name, "local | SSH", all[name])
	}
	table("bowline", "both processes", own)
	return b.String()
}
