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

// The record of resizes is read as the first releases wrote it. That of a newer Bowline
// is an error, by name: no container starts by a guess of what its pod has.
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

// tooLarge is a file of more bytes than are read.
type tooLarge struct{ oneFile }

func (tooLarge) ReadFile(context.Context, string, int64) ([]byte, error) {
	return nil, host.ErrTooLarge
}

// A record that cannot be understood is an error with what to do: what the pods have is
// not guessed, and the record is not written over.
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
		if said := err.Error(); !strings.HasPrefix(said, "/r/resizes.json, which says what resized pods have, cannot be understood (") || strings.Contains(said, "\n") {
			t.Errorf("%s: %s", name, said)
		}
	}
}

// A record that could not be read again is not written.
func TestResizeRecordIsBounded(t *testing.T) {
	k := &recordKeeper{files: oneFile(""), path: "/r/resizes.json"}
	err := k.save(t.Context(), &allocations{complete: func() bool { return false }}, "u", resizedPod{Sandbox: strings.Repeat("s", maxRecord)})
	if err == nil || !strings.Contains(err.Error(), "the most are") {
		t.Error(err)
	}
}
