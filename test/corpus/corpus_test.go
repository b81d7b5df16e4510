package corpus

import (
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	got, err := parse([]byte(header + "string(\"a\\xff\\n\")\nint64(-7)\n" + header + "[]byte(\"\\x00b\")\nint(3)\n"))
	want := [][]any{{"a\xff\n", int64(-7)}, {[]byte("\x00b"), 3}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%#v, %v; want %#v", got, err, want)
	}
	for bad, complaint := range map[string]string{
		"string(\"a\")\n":               "line 1: no ",
		header + "string(\"a\"\n":       "line 2: ",
		header + "\"a\"\n":              "not a conversion",
		header + "rune('a')\n":          "no type that a target has",
		header + "string(a)\n":          "neither a string nor a number",
		header + "string(\"a\", 1)\n":   "not a conversion",
		header + "int(1)\nint(\"1\")\n": "line 3: ",
	} {
		if _, err := parse([]byte(bad)); err == nil || !strings.Contains(err.Error(), complaint) {
			t.Errorf("%q: %v, which does not say %q", bad, err, complaint)
		}
	}
}
