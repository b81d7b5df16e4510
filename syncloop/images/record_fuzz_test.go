package images

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/bowline-k8s/bowline/host/schema"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzRecordFile: what can be read of pulls.json can be changed, written and read again.
func FuzzRecordFile(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":1,"salt":"s","intents":{"i":1},"images":{"sha256:a":{"r":{"everyone":true}}}}`))
	f.Add([]byte(`{"lost":true,"images":{"sha256:a":null}}`))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var r, again recordFile
		if schema.Decode(data, schemaVersion, &r) != nil {
			return
		}
		r = r.clone()
		r.add("sha256:a", "r", access{Everyone: true})
		for image := range r.Intents {
			r.done(image)
			break
		}
		r.SchemaVersion = schemaVersion
		out, err := json.Marshal(r)
		testutil.Must(t, err)
		if err := schema.Decode(out, schemaVersion, &again); err != nil || !cmp.Equal(r, again, cmpopts.EquateEmpty(), cmpopts.IgnoreUnexported(recordFile{})) {
			t.Errorf("%s: %v\n%s", out, err, cmp.Diff(r, again, cmpopts.IgnoreUnexported(recordFile{})))
		}
	})
}
