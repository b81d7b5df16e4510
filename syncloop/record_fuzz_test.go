package syncloop

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/bowline-k8s/bowline/host/schema"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzResizeRecord: any resizes.json that can be read can be written and read again.
func FuzzResizeRecord(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":1,"pods":{"u":{"sandbox":"s","allocation":{}}}}`))
	f.Add([]byte(`{}`))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var r, again resizeRecord
		if schema.Decode(data, resizeSchema, &r) != nil {
			return
		}
		r.SchemaVersion = resizeSchema
		out, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Decode(out, resizeSchema, &again); err != nil || !cmp.Equal(r, again, cmpopts.EquateEmpty()) {
			t.Errorf("%s: %v\n%s", out, err, cmp.Diff(r, again))
		}
	})
}
