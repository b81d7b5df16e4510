package recordtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// inner has what records have: each kind of field, and a type of a dependency.
type inner struct {
	At    time.Time `json:"at"`
	Named map[string][]struct {
		On   *bool  `json:"on,omitempty"`
		Mode uint32 `json:"mode"`
	} `json:"named,omitempty"`
	hidden int // is not written
}

type example struct {
	SchemaVersion int `json:"schemaVersion"`
	Embedded
	List []inner                 `json:"list,omitempty"`
	Room v1.ResourceRequirements `json:"room"`
}

type Embedded struct {
	ID string `json:"id,omitempty"`
}

var exampleKeys = []string{"id", "list", "list[].at", "list[].named", "list[].named.{}", "list[].named.{}[].mode", "list[].named.{}[].on",
	"room", "room.claims", "room.claims[].name", "room.claims[].request", "room.limits", "room.limits.{}", "room.requests", "room.requests.{}", "schemaVersion"}

func TestKeysOf(t *testing.T) {
	got, err := keysOf(example{List: []inner{{hidden: 1}}})
	testutil.Must(t, err)
	if !slices.Equal(got, exampleKeys) {
		t.Errorf("the keys are %q", got)
	}
	for _, bad := range []any{struct{ F any }{}, struct{ F map[int]string }{}, struct{ F json.RawMessage }{}} {
		if keys, err := keysOf(bad); err == nil {
			t.Errorf("%T has the keys %q", bad, keys)
		}
	}
}

// TestKeysAreOfAVersion: a field that is added or removed without a new version is an error that
// says what to do, and so is a new version without its list or its example.
func TestKeysAreOfAVersion(t *testing.T) {
	type one struct {
		SchemaVersion int    `json:"schemaVersion"`
		Name          string `json:"name,omitempty"`
	}
	type more struct {
		SchemaVersion int    `json:"schemaVersion"`
		Name          string `json:"name,omitempty"`
		Owner         string `json:"owner,omitempty"`
	}
	type less struct {
		SchemaVersion int `json:"schemaVersion"`
	}
	dir := t.TempDir()
	write := func(path, data string) {
		path = filepath.Join(dir, path)
		testutil.Must(t, os.MkdirAll(filepath.Dir(path), 0o700))
		testutil.Must(t, os.WriteFile(path, []byte(data), 0o600))
	}
	write("keys/v1/a.json", "name\nschemaVersion\n")
	write("records/v1/bowline/a.json", "{}")
	write("keys/v3/a.json", "name\nschemaVersion\n")
	for _, c := range []struct {
		version int
		record  any
		want    []string
	}{
		{1, one{}, nil},
		{1, more{}, []string{"version 1 refuses a.json, because its keys differ: +owner", "make version 2 of the record"}},
		{1, less{}, []string{"differ: -name"}},
		{2, one{}, []string{"a.json has the new version 2", "host/schema/testdata/keys/v2/a.json", "name\nschemaVersion"}},
		{3, one{}, []string{"version 3 of a.json has no example"}},
	} {
		err := checkKeys(dir, c.version, "a.json", "bowline/a.json", c.record)
		if (err == nil) != (c.want == nil) {
			t.Errorf("version %d, %T: %v", c.version, c.record, err)
		}
		for _, want := range c.want {
			if err != nil && !strings.Contains(err.Error()+"\n"+hint.Of(err), want) {
				t.Errorf("version %d, %T: %v; want %q", c.version, c.record, err, want)
			}
		}
	}
}
