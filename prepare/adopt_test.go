package prepare

import (
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest/recordtest"
)

// TestEveryVersionsRecord: Undo understands the record of every version.
func TestEveryVersionsRecord(t *testing.T) {
	recordtest.Each(t, func(t *testing.T, version string, h host.Host, root string) {
		r, err := ReadRecord(t.Context(), h, root)
		if err != nil || r == nil {
			t.Fatalf("%+v, %v", r, err)
		}
		if len(r.Fixes) != 1 || len(r.Fixes[0].Edits) != 1 || r.Fixes[0].Edits[0].Mode != 0o644 || r.Fixes[0].Kernel[0].Old != "0" || len(r.Absent) != 1 {
			t.Errorf("%+v", r)
		}
	})
}

func TestKeysOfTheRecord(t *testing.T) { recordtest.Keys(t, schemaVersion, "prepared.json", Record{}) }
