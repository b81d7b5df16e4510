package charts

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/config"
)

// TestTemplatesAskNoCluster: "helm template" and GitOps tools render without a cluster,
// where "lookup" finds nothing and says nothing.
func TestTemplatesAskNoCluster(t *testing.T) {
	files, err := filepath.Glob("bowline/templates/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v: %v", files, err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.IsDir() {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(data, []byte("lookup ")) {
			t.Errorf("%s looks something up in the cluster", file)
		}
	}
}

// TestGitOps: with hooks.enabled false no hook stands before the first sync, and the
// configuration is whole without a cluster to ask.
func TestGitOps(t *testing.T) {
	all := documents(t, "testdata/gitops.yaml")
	for _, d := range all {
		var object struct {
			Metadata metav1.ObjectMeta
		}
		if err := yaml.Unmarshal(d.raw, &object); err != nil {
			t.Fatal(err)
		}
		if hook := object.Metadata.Annotations["helm.sh/hook"]; hook != "" && hook != "test" {
			t.Errorf("%s %s is the hook %s", d.Kind, d.name, hook)
		}
	}
	cm := of[v1.ConfigMap](t, all, "ConfigMap")["bowline"]
	c, err := config.ParseFile("/etc/bowline/config.yaml", []byte(cm.Data["config.yaml"]))
	if err != nil || c.ClusterDNS != nil {
		t.Errorf("clusterDNS %q: %v; each node would not find it", c.ClusterDNS, err)
	}
}
