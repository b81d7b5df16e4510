package prepare

import (
	"strings"
	"testing"
)

// TestRecordVersions: the record of the first releases can be read. That of a newer Bowline is
// refused, by name, and stays unchanged.
func TestRecordVersions(t *testing.T) {
	for data, want := range map[string]string{
		`{"at":"2026-01-02T03:04:05Z","fixes":[],"absent":["/r"]}`:                   "",
		`{"schemaVersion":1,"at":"2026-01-02T03:04:05Z","fixes":[],"absent":["/r"]}`: "",
		`{"schemaVersion":2,"at":"2026-01-02T03:04:05Z","fixes":[],"more":1}`:        "cannot parse " + RecordPath(root) + ", the record of host prepare: it has schema version 2",
		"\x00\x00": "cannot parse",
	} {
		m := newMemory("/etc/config.toml")
		m.files[RecordPath(root)] = data
		r, err := ReadRecord(t.Context(), m, root)
		if want == "" && (err != nil || r == nil || len(r.Absent) != 1) {
			t.Errorf("%s: %+v, %v", data, r, err)
		}
		if want != "" {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v", data, err)
			}
			if err := Apply(t.Context(), m, root, all()); err == nil {
				t.Errorf("%s: the machine is prepared all the same", data)
			}
		}
		if m.files[RecordPath(root)] != data {
			t.Errorf("%s was changed to %s", data, m.files[RecordPath(root)])
		}
	}
}
