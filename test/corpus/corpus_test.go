package corpus

import (
	"reflect"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	got, err := parse([]byte("string(\"a\\xff\\n\\t\")\tint64(-7)\n[]byte(\"\\x00b\")\tint(3)\tbool(true)\n"))
	want := [][]any{{"a\xff\n\t", int64(-7)}, {[]byte("\x00b"), 3, true}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("%#v, %v; want %#v", got, err, want)
	}
	for bad, complaint := range map[string]string{
		"":                             "line 1: ",
		"int(1)\nstring(\"a\"\n":       "line 2: ",
		"\"a\"\n":                      "not a conversion",
		"rune('a')\n":                  "no type that a target has",
		"string(a)\n":                  "no string, number or boolean",
		"string(\"a\", 1)\n":           "not a conversion",
		"int(1)\nint(2)\tint(\"1\")\n": "line 2: ",
	} {
		if _, err := parse([]byte(bad)); err == nil || !strings.Contains(err.Error(), complaint) {
			t.Errorf("%q: %v, which does not say %q", bad, err, complaint)
		}
	}
}
