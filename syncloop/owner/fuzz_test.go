package owner

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/bowline-k8s/bowline/test/corpus"
)

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(`{"clusterUID":"c","nodeName":"n","instance":"i","pid":5,"startedAt":"2026-11-21T05:37:04Z","version":"v1"}`))
	f.Add([]byte(""))
	f.Add([]byte("null"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseRecord(data)
		if err != nil || r == nil {
			return
		}
		r.SchemaVersion = schemaVersion // bytes writes the current version
		again, err := ParseRecord(r.bytes())
		if err != nil || !cmp.Equal(r, again) {
			t.Errorf("%+v became %+v, %v", r, again, err)
		}
		_ = r.driver()
	})
}

func FuzzParseStamp(f *testing.F) {
	f.Add("cluster/node")
	f.Add("")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		if parseStamp(s) == "" {
			t.Error("a stamp without words")
		}
	})
}
