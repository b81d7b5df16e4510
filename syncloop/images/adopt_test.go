package images

import (
	"path"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest/recordtest"
)

// TestEveryVersionsPulls: those who may use an image according to an older file still may, and no
// one else.
func TestEveryVersionsPulls(t *testing.T) {
	recordtest.Each(t, func(t *testing.T, version string, h host.Host, root string) {
		r := newRecords(h, path.Join(root, "bowline", "pulls.json"))
		file, err := r.load(t.Context())
		if err != nil || file.Lost || r.frozen {
			t.Fatalf("%+v, %v", file, err)
		}
		if s := file.Images["sha256:aa"]["r.example/app"].Secrets; len(s) != 1 || s[0].UID != "s-1" || s[0].Hash != "9b71" {
			t.Errorf("secrets %+v", s)
		}
		if !file.Images["sha256:bb"]["r.example/free"].Everyone || file.Images["sha256:aa"]["r.example/app"].Everyone || file.Intents["r.example/cut:1"] != 1 {
			t.Errorf("%+v", file)
		}
	})
}

func TestKeysOfPulls(t *testing.T) { recordtest.Keys(t, schemaVersion, "pulls.json", recordFile{}) }
