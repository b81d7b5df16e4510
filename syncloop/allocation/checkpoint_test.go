package allocation

import (
	"context"
	"encoding/json"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/hosttest/recordtest"
	"github.com/bowline-k8s/bowline/host/schema"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// oneFile is a file in memory.
type oneFile string

func (f oneFile) ReadFile(context.Context, string, int64) ([]byte, error) { return []byte(f), nil }

func (f oneFile) WriteFile(context.Context, string, []byte, fs.FileMode) error {
	panic("a record was written that was only to be read")
}

// The record of resizes is read as the first releases wrote it. The record of a newer Bowline is an
// error that names it: no container starts on a guessed allocation.
func TestResizeRecordVersions(t *testing.T) {
	for data, newer := range map[string]bool{
		`{"pods":{"u":{"sandbox":"s","allocation":{}}}}`:                   false,
		`{"schemaVersion":1,"pods":{"u":{"sandbox":"s","allocation":{}}}}`: false,
		`{"schemaVersion":2,"pods":{},"more":1}`:                           true,
	} {
		r, err := readRecord(t.Context(), oneFile(data), "/r/resizes.json")
		if schema.Newer(err) != newer || !newer && (err != nil || r.Pods["u"].Sandbox != "s") {
			t.Errorf("%s: %+v, %v", data, r, err)
		}
		if newer && !strings.Contains(err.Error(), "/r/resizes.json") {
			t.Errorf("it is not named: %v", err)
		}
	}
}

// tooLarge is a file that is larger than the limit.
type tooLarge struct{ oneFile }

func (tooLarge) ReadFile(context.Context, string, int64) ([]byte, error) {
	return nil, host.ErrTooLarge
}

// A record that cannot be decoded is an error that says what to do. Allocations are not guessed,
// and the record is not overwritten.
func TestResizeRecordFailsClosed(t *testing.T) {
	for name, files := range map[string]Files{
		"cut off": oneFile(`{"schemaVersion":1,"pods":{"u":{"san`), "empty": oneFile(""), "NULs": oneFile("\x00\x00\x00"),
		"another file": oneFile("[]"), "two": oneFile(`{"schemaVersion":1,"pods":{}}{}`), "too large": tooLarge{},
	} {
		r, err := readRecord(t.Context(), files, "/r/resizes.json")
		if err == nil || len(r.Pods) > 0 {
			t.Errorf("%s: read as %+v, %v", name, r, err)
			continue
		}
		if said := err.Error(); !strings.HasPrefix(said, "cannot parse the record of resized pods /r/resizes.json: ") || hint.Of(err) == "" || strings.Contains(said, "\n") {
			t.Errorf("%s: %s", name, said)
		}
	}
}

// A record that would be too large to read is not written.
func TestResizeRecordIsBounded(t *testing.T) {
	err := writeRecord(t.Context(), oneFile(""), "/r/resizes.json", record{Pods: map[types.UID]Resized{"u": {Sandbox: strings.Repeat("s", maxRecord)}}})
	if err == nil || !strings.Contains(err.Error(), "exceed the limit") {
		t.Error(err)
	}
}

// TestEveryVersionsResizes: a resized pod keeps the allocation that any earlier Bowline version
// recorded.
func TestEveryVersionsResizes(t *testing.T) {
	recordtest.Each(t, func(t *testing.T, version string, h host.Host, root string) {
		r, err := readRecord(t.Context(), h, Checkpoint(root))
		testutil.Must(t, err)
		p := r.Pods["3f2a"]
		limits := p.Allocation.Containers["app"].Limits
		if limit := limits.Cpu(); p.Sandbox != "box-1" || limit.String() != "200m" || p.Sized["con-1"].CPULimit != 200 {
			t.Errorf("%+v", p)
		}
	})
}

func TestKeysOfResizes(t *testing.T) { recordtest.Keys(t, recordSchema, "resizes.json", record{}) }

// FuzzResizeRecord: any resizes.json that can be read can be written and read again.
func FuzzResizeRecord(f *testing.F) {
	f.Add([]byte(`{"schemaVersion":1,"pods":{"u":{"sandbox":"s","allocation":{}}}}`))
	f.Add([]byte(`{}`))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		var r, again record
		if schema.Decode(data, recordSchema, &r) != nil {
			return
		}
		r.SchemaVersion = recordSchema
		out, err := json.Marshal(r)
		testutil.Must(t, err)
		if err := schema.Decode(out, recordSchema, &again); err != nil || !cmp.Equal(r, again, cmpopts.EquateEmpty()) {
			t.Errorf("%s: %v\n%s", out, err, cmp.Diff(r, again))
		}
	})
}
