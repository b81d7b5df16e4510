package syncloop

import (
	"context"
	"io/fs"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/schema"
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
		k := &recordKeeper{files: oneFile(data), path: "/r/resizes.json"}
		r, err := k.read(t.Context())
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
	for name, files := range map[string]recordFiles{
		"cut off": oneFile(`{"schemaVersion":1,"pods":{"u":{"san`), "empty": oneFile(""), "NULs": oneFile("\x00\x00\x00"),
		"another file": oneFile("[]"), "two": oneFile(`{"schemaVersion":1,"pods":{}}{}`), "too large": tooLarge{},
	} {
		k := &recordKeeper{files: files, path: "/r/resizes.json"}
		r, err := k.read(t.Context())
		if err == nil || len(r.Pods) > 0 {
			t.Errorf("%s: read as %+v, %v", name, r, err)
			continue
		}
		if said := err.Error(); !strings.HasPrefix(said, "cannot parse /r/resizes.json, the record of resized pods (") || strings.Contains(said, "\n") {
			t.Errorf("%s: %s", name, said)
		}
	}
}

// A record that would be too large to read is not written.
func TestResizeRecordIsBounded(t *testing.T) {
	k := &recordKeeper{files: oneFile(""), path: "/r/resizes.json"}
	err := k.save(t.Context(), &allocations{complete: func() bool { return false }}, "u", resizedPod{Sandbox: strings.Repeat("s", maxRecord)})
	if err == nil || !strings.Contains(err.Error(), "exceed the limit") {
		t.Error(err)
	}
}
