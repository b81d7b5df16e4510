package fleet

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/cluster/clustertest"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// TestNewerPodsAreLeft: a host on which a newer Bowline recorded a pod is neither managed nor
// released, and every file on it stays as it is.
func TestNewerPodsAreLeft(t *testing.T) {
	api, rt, root := clustertest.APIServer(t, "system:node:n1", 0, clustertest.GoodVersion), fake.Run(t, fake.Config{}), t.TempDir()
	files := map[string]string{
		owner.FilePath(root):                          `{"schemaVersion": 1, "clusterUID": "u1", "nodeName": "n1", "witnesses": {"serviceUID": "u1"}}`,
		filepath.Join(volume.RecordDir(root), "5b1c"): `{"schemaVersion": 2, "namespace": "ns", "name": "app", "more": true}`,
	}
	testutil.Must(t, os.MkdirAll(volume.RecordDir(root), 0o700))
	for path, data := range files {
		testutil.Must(t, os.WriteFile(path, []byte(data), 0o600))
	}
	cfg := clustertest.HostWith(clustertest.Kubeconfig(t, api.URL, api.Certificate(), nil, nil))
	cfg.Name, cfg.NodeName, cfg.HostObject, cfg.Endpoint, cfg.RootDirectory, cfg.FailSwapOn = "box", "n1", "box", "unix://"+rt.Socket, root, new(bool)
	d := newDrivers(1)
	d.recognize = func(context.Context, string, v1alpha1.MachineStatus) error { return nil }
	client := kubernetesfake.NewClientset(&v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes", UID: "u1"}})
	for what, err := range map[string]error{
		"managed":  d.Manage(t.Context(), cfg, nil),
		"released": releaseMachine(t.Context(), cfg, client, nil, nil),
	} {
		if err == nil || !strings.Contains(err.Error(), "5b1c belongs to another Bowline: it has schema version 2") {
			t.Errorf("%s: %v", what, err)
		}
	}
	for path, want := range files {
		if data, err := os.ReadFile(path); err != nil || string(data) != want {
			t.Errorf("%s is %s: %v", path, data, err)
		}
	}
	var left []string
	testutil.Must(t, filepath.WalkDir(root, func(path string, e os.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			left = append(left, path)
		}
		return err
	}))
	if len(left) != len(files) || slices.ContainsFunc(left, func(path string) bool { return files[path] == "" }) {
		t.Errorf("on the host there are %v", left)
	}
}
