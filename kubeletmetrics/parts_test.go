package kubeletmetrics

import (
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
)

func TestImageSizes(t *testing.T) {
	for bytes, want := range map[uint64]string{0: "N/A", 1: "0-10MB", 10 << 20: "0-10MB", 10<<20 + 1: "10MB-100MB", 500 << 20: "100MB-500MB", 1 << 30: "500MB-1GB",
		1<<30 + 1: "1GB-5GB", 60 << 30: "40GB-60GB", 100 << 30: "60GB-100GB", 100<<30 + 1: "GT100GB"} {
		if got := imageSize(bytes); got != want {
			t.Errorf("%d bytes are %s, want %s", bytes, got, want)
		}
	}
}

func TestParts(t *testing.T) {
	r := metrics.NewKubeRegistry()
	p := NewParts(r)
	p.ImageEnsured("always", nil, new(true))
	p.ImageEnsured("never", new(false), nil)
	p.PluginRan("acr", time.Second, nil)
	p.PluginRan("acr", time.Second, errors.New("no"))
	p.OrphansCleaned(5, 2)
	p.ShutDown(time.Unix(1, 0))
	p.ShuttingDown(time.Unix(10, 500_000_000))
	p.ClientCertificate().Inc()
	p.ClientCertificate().Observe(5)
	p.ServerCertificate().Inc()
	p.ServerCertificate().Inc()
	p.Started(Startup{Began: time.Unix(20, 0), Asked: time.Unix(21, 0), Registered: time.Unix(23, 0), Ready: time.Unix(26, 0)})
	want := map[string]string{}
	for _, series := range []string{
		`kubelet_image_manager_ensure_image_requests_total{present_locally="unknown",pull_policy="always",pull_required="true"} 1`,
		`kubelet_image_manager_ensure_image_requests_total{present_locally="false",pull_policy="never",pull_required="unknown"} 1`,
		`kubelet_credential_provider_plugin_errors_total{plugin_name="acr"} 1`,
		`kubelet_orphan_pod_cleaned_volumes 5`, `kubelet_orphan_pod_cleaned_volumes_errors 2`,
		`kubelet_graceful_shutdown_start_time_seconds 10.5`, `kubelet_graceful_shutdown_end_time_seconds 0`,
		`kubelet_certificate_manager_client_expiration_renew_errors 1`, `kubelet_server_expiration_renew_errors 2`,
		`kubelet_node_startup_pre_registration_duration_seconds 1`, `kubelet_node_startup_registration_duration_seconds 2`,
		`kubelet_node_startup_post_registration_duration_seconds 3`, `kubelet_node_startup_duration_seconds 0`,
	} {
		name := series[:strings.IndexAny(series, "{ ")]
		want[name] += series + "\n"
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if text, ok := want[f.GetName()]; ok {
			kind := strings.ToLower(f.GetType().String())
			text = "# HELP " + f.GetName() + " " + f.GetHelp() + "\n# TYPE " + f.GetName() + " " + kind + "\n" + text
			if err := testutil.GatherAndCompare(r, strings.NewReader(text), f.GetName()); err != nil {
				t.Error(err)
			}
			delete(want, f.GetName())
		}
	}
	if len(want) > 0 {
		t.Errorf("not shown: %v", want)
	}
	p.Started(Startup{Booted: time.Unix(5, 0), Began: time.Unix(20, 0), Asked: time.Unix(21, 0), Registered: time.Unix(23, 0), Ready: time.Unix(26, 0)})
	for name, want := range map[string]float64{"kubelet_node_startup_duration_seconds": 21, "kubelet_node_startup_pre_kubelet_duration_seconds": 15} {
		if got, err := testutil.GetGaugeMetricValue(map[string]*metrics.Gauge{"kubelet_node_startup_duration_seconds": p.startup, "kubelet_node_startup_pre_kubelet_duration_seconds": p.preDriver}[name]); err != nil || got != want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := testutil.GetHistogramVecFromGatherer(r, "kubelet_certificate_manager_server_rotation_seconds", nil); err != nil || got.GetAggregatedSampleCount() != 0 {
		t.Errorf("the client's certificate counts as the server's: %v, %v", got, err)
	}
}
