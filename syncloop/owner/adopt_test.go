package owner

import (
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest/recordtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// TestEveryVersionsOwner: a host keeps its stamp, whichever version managed it last.
func TestEveryVersionsOwner(t *testing.T) {
	const cluster = "0b7c2f9e-5d0e-4b6e-9a51-3c1f8f0f2a11"
	recordtest.Each(t, func(t *testing.T, version string, h host.Host, root string) {
		runs := sandbox("ours", map[string]string{pod.LabelPodUID: "3f2a", pod.LabelOwner: cluster + "/n1"})
		runtime := &listed{}
		runtime.set(nil, runs)
		claim, err := Take(t.Context(), Config{Host: h, Runtime: runtime, RootDir: root, RunDir: t.TempDir(),
			ClusterUID: "another-by-now", Witnesses: Witnesses{Service: cluster}, NodeName: "n1", Instance: "i", StartedAt: time.Unix(1, 0)})
		testutil.Must(t, err)
		if claim.Stamp() != cluster+"/n1" || claim.Found().Ours != 1 {
			t.Errorf("managed as %s: %+v", claim.Stamp(), claim.Found())
		}
		data, err := h.ReadFile(t.Context(), FilePath(root), maxRecord)
		testutil.Must(t, err)
		if r, err := ParseRecord(data); err != nil || r.SchemaVersion != schemaVersion || r.ClusterUID != cluster {
			t.Errorf("written as %s: %v", data, err)
		}
		if err := claim.Release(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestKeysOfTheOwner(t *testing.T) { recordtest.Keys(t, schemaVersion, "owner", Record{}) }
