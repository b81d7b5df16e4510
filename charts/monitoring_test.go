package charts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// optIn is an object for monitoring that values enable. Its golden has all that templates/monitoring.yaml
// renders then.
type optIn struct{ golden, kind, name, label string }

var optIns = []optIn{
	{"testdata/monitoring-podMonitor.yaml", "PodMonitor", "example-bowline", "release"},
	{"testdata/monitoring-prometheusRule.yaml", "PrometheusRule", "example-bowline", "release"},
	{"testdata/monitoring-dashboard.yaml", "ConfigMap", "example-bowline-dashboard", "grafana_dashboard"},
}

// TestMonitoringIsOff: without an opt-in the chart makes no object for monitoring, which a cluster without the
// Prometheus operator would refuse.
func TestMonitoringIsOff(t *testing.T) {
	for _, file := range append([]string{"testdata/local.yaml", "testdata/gitops.yaml", "testdata/gitops-local.yaml"}, manifests...) {
		for _, d := range documents(t, file) {
			if strings.HasPrefix(d.APIVersion, "monitoring.coreos.com/") || d.Kind == "ConfigMap" && strings.HasSuffix(d.name, "-dashboard") {
				t.Errorf("%s has the %s %s", file, d.Kind, d.name)
			}
		}
	}
	// The goldens of the opt-ins have one template each, so no other template may depend on these values.
	templates, err := filepath.Glob("bowline/templates/*.*")
	if err != nil || len(templates) < 5 {
		t.Fatalf("%v: %v", templates, err)
	}
	for _, file := range templates {
		if filepath.Base(file) != "monitoring.yaml" && bytes.Contains(testutil.ReadFile(t, file), []byte(".monitoring")) {
			t.Errorf("%s depends on the values of monitoring", file)
		}
	}
}

// TestMonitoringOptIns: each opt-in makes its own object and no other, in the namespace of the release and with
// the labels that the values add.
func TestMonitoringOptIns(t *testing.T) {
	for _, o := range optIns {
		all := documents(t, o.golden)
		if len(all) != 1 || all[0].Kind != o.kind || all[0].name != o.name {
			t.Errorf("%s has %d objects, the first is the %s %s", o.golden, len(all), all[0].Kind, all[0].name)
			continue
		}
		var object struct{ Metadata metav1.ObjectMeta }
		testutil.Must(t, yaml.Unmarshal(all[0].raw, &object))
		m := object.Metadata
		if m.Namespace != "machines" || m.Labels[o.label] == "" || m.Labels["app.kubernetes.io/instance"] != "example" {
			t.Errorf("%s is in the namespace %q with the labels %v", o.golden, m.Namespace, m.Labels)
		}
	}
}

// TestPodMonitor: it selects the pods of the Deployment, and scrapes a port that they have.
func TestPodMonitor(t *testing.T) {
	var monitor struct {
		Spec struct {
			Selector            metav1.LabelSelector
			PodMetricsEndpoints []struct {
				Port, Path, Interval string
				HonorLabels          bool
			}
		}
	}
	testutil.Must(t, yaml.Unmarshal(documents(t, optIns[0].golden)[0].raw, &monitor))
	d := of[appsv1.Deployment](t, documents(t, example), "Deployment")["example-bowline"]
	if !reflect.DeepEqual(monitor.Spec.Selector, *d.Spec.Selector) {
		t.Errorf("it selects %v, the Deployment %v", monitor.Spec.Selector, *d.Spec.Selector)
	}
	endpoints, container := monitor.Spec.PodMetricsEndpoints, d.Spec.Template.Spec.Containers[0]
	if len(endpoints) != 1 || endpoints[0].Path != "/metrics" || !endpoints[0].HonorLabels || endpoints[0].Interval != "30s" {
		t.Fatalf("it scrapes %+v", endpoints)
	}
	i := slices.IndexFunc(container.Ports, func(p v1.ContainerPort) bool { return p.Name == endpoints[0].Port })
	if i < 0 {
		t.Fatalf("the pods have no port %s: %v", endpoints[0].Port, container.Ports)
	}
	if want := fmt.Sprintf("--health-address=:%d", container.Ports[i].ContainerPort); !slices.Contains(container.Args, want) {
		t.Errorf("the pods run with %q, want %s", container.Args, want)
	}
}

// TestPrometheusRuleAndDashboard: the objects hold the files of the chart, unchanged.
func TestPrometheusRuleAndDashboard(t *testing.T) {
	var rule struct{ Spec map[string]any }
	testutil.Must(t, yaml.Unmarshal(documents(t, optIns[1].golden)[0].raw, &rule))
	var want map[string]any
	testutil.Must(t, yaml.Unmarshal(testutil.ReadFile(t, "bowline/files/alerts.yaml"), &want))
	if len(want) != 1 || !reflect.DeepEqual(rule.Spec, want) {
		t.Error("the PrometheusRule differs from alerts.yaml")
	}
	cm := of[v1.ConfigMap](t, documents(t, optIns[2].golden), "ConfigMap")[optIns[2].name]
	if text := string(testutil.ReadFile(t, "bowline/files/dashboard.json")); len(cm.Data) != 1 || strings.TrimSpace(cm.Data["bowline.json"]) != strings.TrimSpace(text) {
		t.Error("the ConfigMap differs from dashboard.json")
	}
	var dashboard struct {
		Title  string
		Panels []struct {
			ID      int
			Title   string
			GridPos struct{ H, W, X, Y int }
			Targets []struct{ Expr string }
		}
	}
	testutil.Must(t, json.Unmarshal([]byte(cm.Data["bowline.json"]), &dashboard))
	ids, places := map[int]bool{}, map[[2]int]bool{}
	for _, p := range dashboard.Panels {
		place := [2]int{p.GridPos.X, p.GridPos.Y}
		if ids[p.ID] || places[place] || p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("the panel %d %q at %v has the number or the place of another, or asks nothing", p.ID, p.Title, place)
		}
		ids[p.ID], places[place] = true, true
	}
	if dashboard.Title == "" || len(ids) < 8 {
		t.Errorf("the dashboard %q has %d panels", dashboard.Title, len(ids))
	}
}
