package charts

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestTemplatesAskNoCluster: "helm template" and GitOps tools render without a cluster, where
// "lookup" silently finds nothing.
func TestTemplatesAskNoCluster(t *testing.T) {
	files, err := filepath.Glob("bowline/templates/*")
	if err != nil || len(files) < 5 {
		t.Fatalf("%v: %v", files, err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.IsDir() {
			continue
		}
		data := testutil.ReadFile(t, file)
		if bytes.Contains(data, []byte("lookup ")) {
			t.Errorf("%s looks something up in the cluster", file)
		}
	}
}

// TestGitOps: with hooks.enabled false no hook runs before the first sync, and the configuration is
// complete without a cluster.
func TestGitOps(t *testing.T) {
	all := documents(t, "testdata/gitops.yaml")
	for _, d := range append(documents(t, "testdata/gitops-local.yaml"), all...) {
		if hook := hookOf(t, d); hook != "" && hook != "test" {
			t.Errorf("%s %s is the hook %s", d.Kind, d.name, hook)
		}
	}
	cm := of[v1.ConfigMap](t, all, "ConfigMap")["bowline"]
	c, err := config.ParseFile("/etc/bowline/config.yaml", []byte(cm.Data["config.yaml"]))
	if err != nil || c.ClusterDNS != nil {
		t.Errorf("clusterDNS %q: %v; each node would not find it", c.ClusterDNS, err)
	}
}

func hookOf(t *testing.T, d document) string {
	t.Helper()
	var object struct {
		Metadata metav1.ObjectMeta
	}
	testutil.Must(t, yaml.Unmarshal(d.raw, &object))
	return object.Metadata.Annotations["helm.sh/hook"]
}

// TestHookJobsEnd: a hook's Job whose image cannot be pulled ends by itself, because a GitOps tool
// waits for it without a limit. Its command has its own, shorter timeout.
func TestHookJobsEnd(t *testing.T) {
	seen := 0
	for _, file := range []string{"testdata/example.yaml", "testdata/local.yaml"} {
		for _, d := range documents(t, file) {
			if d.Kind != "Job" || hookOf(t, d) == "" {
				continue
			}
			seen++
			var job batchv1.Job
			testutil.Must(t, yaml.UnmarshalStrict(d.raw, &job))
			limit := job.Spec.ActiveDeadlineSeconds
			if limit == nil {
				t.Errorf("%s: the Job %s has no activeDeadlineSeconds", file, d.name)
				continue
			}
			for _, arg := range job.Spec.Template.Spec.Containers[0].Args {
				_, text, ok := strings.Cut(arg, "timeout=")
				if !ok {
					continue
				}
				timeout, err := time.ParseDuration(text)
				if err != nil || *limit < int64(timeout.Seconds())+60 {
					t.Errorf("%s: the Job %s ends after %d s, what it runs after %s (%v)", file, d.name, *limit, text, err)
				}
			}
		}
	}
	if seen < 4 {
		t.Errorf("only %d hook Jobs", seen)
	}
}
