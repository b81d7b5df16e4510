package schema

import (
	"strings"
	"testing"
)

type thing struct {
	SchemaVersion int    `json:"schemaVersion"`
	Name          string `json:"name"`
}

func TestDecode(t *testing.T) {
	for name, c := range map[string]struct {
		data, want string // want: part of the error
		newer      bool
		read       string
	}{
		"of the first releases": {data: `{"name":"a"}`, read: "a"},
		"their unknown fields":  {data: `{"name":"a","other":1}`, read: "a"},
		"known":                 {data: `{"schemaVersion":1,"name":"a"}`, read: "a"},
		"unknown field":         {data: `{"schemaVersion":1,"name":"a","other":1}`, want: `unknown field "other"`, read: "a"},
		"newer":                 {data: `{"schemaVersion":2,"name":"a","other":1}`, want: "schema version 2, and this Bowline knows versions up to 1", newer: true, read: "a"},
		"no version":            {data: `{"schemaVersion":-1}`, want: "does not exist"},
		"two":                   {data: `{"schemaVersion":1}{}`, want: "invalid character"},
		"garbage":               {data: "x", want: "invalid character"},
		"NULs":                  {data: "\x00\x00", want: "invalid character"},
	} {
		var got thing
		err := Decode([]byte(c.data), 1, &got)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) || Newer(err) != c.newer || got.Name != c.read {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestBlank(t *testing.T) {
	for data, want := range map[string]bool{"": true, " \n": true, "\x00\x00": true, "{}": false, "\x00x": false} {
		if Blank([]byte(data)) != want {
			t.Errorf("%q: %v", data, !want)
		}
	}
}

// TestDecodeIsBounded: a record of some megabytes may take a hundred times as much memory once
// decoded, so Decode counts its objects and values first.
func TestDecodeIsBounded(t *testing.T) {
	for what, item := range map[string]string{"objects": `{},`, "lists": `[],`, "numbers": `0,`} {
		for n, want := range map[int]string{30_000: "", 2_000_000: "and the most are"} {
			var got struct {
				SchemaVersion int   `json:"schemaVersion"`
				Things        []any `json:"things"`
			}
			err := Decode([]byte(`{"schemaVersion":1,"things":[`+strings.Repeat(item, n)+`0]}`), 1, &got)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%d %s: %v", n, what, err)
			}
			if want == "" && len(got.Things) != n+1 || want != "" && got.Things != nil {
				t.Errorf("%d %s: %d were read", n, what, len(got.Things))
			}
		}
	}
}
