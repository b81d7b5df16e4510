package prepare

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/bowline-k8s/bowline/host/schema"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzRecord: whatever can be read as prepared.json can be written and read again.
func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":1,"at":"2026-11-21T05:37:04Z","fixes":[{"name":"sysctls","why":"w","edits":[{"path":"/etc/sysctl.d/x","new":"a=1"}]}],"absent":["/var/lib/kubelet"]}`))
	f.Add([]byte(`{"at":"2026-11-21T05:37:04Z","fixes":null}`))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r := &Record{}
		if schema.Decode(data, schemaVersion, r) != nil {
			return
		}
		_ = r.chosen()
		r.SchemaVersion = schemaVersion
		out, err := json.Marshal(r)
		if err != nil {
			return // a year outside the range of JSON
		}
		again := &Record{}
		if err := schema.Decode(out, schemaVersion, again); err != nil || !cmp.Equal(r, again, cmpopts.EquateEmpty()) {
			t.Errorf("%s: %v\n%s", out, err, cmp.Diff(r, again))
		}
	})
}
