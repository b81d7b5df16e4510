package node

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	logsapi "k8s.io/component-base/logs/api/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestConfigz: what a kubelet has too is shown as a KubeletConfiguration that decodes strictly.
func TestConfigz(t *testing.T) {
	cfg := &config.Host{Endpoint: "unix:///run/containerd/containerd.sock", NodeName: "n1", RootDirectory: "/var/lib/kubelet"}
	yes, percent := true, int32(85)
	cfg.MaxPods, cfg.ClusterDNS, cfg.SeccompDefault, cfg.ImageGCHighThresholdPercent = 50, []string{"10.96.0.10"}, &yes, &percent
	cfg.EvictionHard = map[string]string{"memory.available": "100Mi"}
	cfg.StaticPodURL, cfg.StaticPodURLHeader = "https://me:secret@example.com/pods", map[string][]string{"Authorization": {"secret"}}
	cfg.Server.Port, cfg.PodLogsDirectory = 10250, "/var/log/pods"
	cfg.FeatureGates = map[string]bool{"ContainerCheckpoint": false}
	logging := logsapi.NewLoggingConfiguration()
	logging.Format, logging.Verbosity = "json", 2
	shown, err := configz(cfg, logging, &tracingapi.TracingConfiguration{SamplingRatePerMillion: &percent})
	testutil.Must(t, err)
	data, err := json.Marshal(shown["kubeletconfig"])
	testutil.Must(t, err)
	var got kubeletconfig.KubeletConfiguration
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	testutil.Must(t, d.Decode(&got))
	if got.Kind != "KubeletConfiguration" || got.APIVersion != "kubelet.config.k8s.io/v1beta1" || got.MaxPods != 50 || !slices.Equal(got.ClusterDNS, cfg.ClusterDNS) ||
		!*got.SeccompDefault || *got.ImageGCHighThresholdPercent != 85 || got.EvictionHard["memory.available"] != "100Mi" || got.Port != 10250 ||
		got.PodLogsDir != "/var/log/pods" || !maps.Equal(got.FeatureGates, cfg.FeatureGates) ||
		got.Logging.Format != "json" || got.Logging.Verbosity != 2 || *got.Tracing.SamplingRatePerMillion != percent || got.ContainerRuntimeEndpoint != "unix:///run/containerd/containerd.sock" {
		t.Errorf("shown: %s", data)
	}
	all, err := json.Marshal(shown)
	testutil.Must(t, err)
	if strings.Contains(string(all), "secret") {
		t.Errorf("a credential is shown: %s", all)
	}
}

// TestKubeletNames: a setting with the name of a kubelet's has its type, so that /configz can show it.
func TestKubeletNames(t *testing.T) {
	kubelet := map[string]reflect.Type{}
	k := reflect.TypeFor[kubeletconfig.KubeletConfiguration]()
	for i := range k.NumField() {
		name, _, _ := strings.Cut(k.Field(i).Tag.Get("json"), ",")
		kubelet[name] = k.Field(i).Type
	}
	shared := 0
	settings := reflect.TypeFor[config.NodeSettings]()
	for i := range settings.NumField() {
		name, _, _ := strings.Cut(settings.Field(i).Tag.Get("json"), ",")
		if kubelet[name] != nil {
			shared++
		}
	}
	if shared < 40 {
		t.Errorf("only %d settings have a kubelet's name", shared)
	}
}
