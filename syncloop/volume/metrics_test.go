package volume

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestOperationsAreObserved: each volume is observed once when it is set up, once for each failure
// before that, and once when it is released.
func TestOperationsAreObserved(t *testing.T) {
	h, c := newMemHost(), newCluster()
	m := newManager(t, h, c)
	var mu sync.Mutex
	var seen []string
	m.cfg.Observe = func(plugin, operation string, _ time.Duration, err error) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, fmt.Sprint(plugin, " ", operation, " ", err == nil))
	}
	want := func(what string, want ...string) {
		t.Helper()
		slices.Sort(seen)
		if !slices.Equal(seen, want) {
			t.Errorf("%s: %q, want %q", what, seen, want)
		}
		seen = nil
	}
	p := testPod(emptyDir("", ""), secretVolume("sec"), configMapVolume("later"))
	if _, err := m.Prepare(t.Context(), p); err == nil {
		t.Fatal("a configMap is missing, and all volumes are set up")
	}
	want("with a configMap missing", "kubernetes.io/configmap volume_mount false", "kubernetes.io/empty-dir volume_mount true", "kubernetes.io/secret volume_mount true")
	c.setConfigMap("later", "k", "v")
	prepare(t, m, p)
	want("when it is there", "kubernetes.io/configmap volume_mount true")
	prepare(t, m, p)
	want("again")
	testutil.Must(t, m.Release(t.Context(), p.UID))
	want("released", "kubernetes.io/configmap volume_unmount true", "kubernetes.io/empty-dir volume_unmount true", "kubernetes.io/secret volume_unmount true")
}
