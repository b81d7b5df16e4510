package spec_test

import (
	"regexp"
	"testing"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/test/corpus"
)

var vars = map[string]string{"A": "a", "B": "$(A)", "EMPTY": "", "$": "dollar", "A(": "odd", "$(A": "nested"}

func lookup(name string) (string, bool) { v, ok := vars[name]; return v, ok }

func TestExpand(t *testing.T) {
	for in, want := range map[string]string{
		"":                 "",
		"plain":            "plain",
		"$(A)":             "a",
		"x$(A)y$(A)z":      "xayaz",
		"$(B)":             "$(A)", // inserted values are not expanded
		"$(EMPTY)":         "",
		"$(NONE)":          "$(NONE)",
		"$$(A)":            "$(A)",
		"$$$(A)":           "$a",
		"$$$$(A)":          "$$(A)",
		"$":                "$",
		"a$":               "a$",
		"$x(A)":            "$x(A)",
		"$(A":              "$(A",
		"$(A$$":            "$(A$",
		"$()":              "$()",
		"$(A()":            "odd",
		"$($(A))":          "nested)",
		"$($)":             "dollar",
		"${A}":             "${A}",
		"ä$(A)ö$ü":         "äaö$ü",
		"$(A)$(NONE)$(A)$": "a$(NONE)a$",
	} {
		if got := spec.Expand(in, lookup); got != want {
			t.Errorf("Expand(%q) = %q, want %q", in, got, want)
		}
	}
}

var reference = regexp.MustCompile(`\$\$|\$\([^)]*\)`)

// dumbExpand implements the rule as one regular expression.
func dumbExpand(s string) string {
	return reference.ReplaceAllStringFunc(s, func(m string) string {
		if m == "$$" {
			return "$"
		}
		if v, ok := lookup(m[2 : len(m)-1]); ok {
			return v
		}
		return m
	})
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"$(A)$$(B)", "$($(A))", "$(A", "$$$", "$x$(EMPTY)", "$($$)"} {
		f.Add(s)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := spec.Expand(s, lookup), dumbExpand(s); got != want {
			t.Fatalf("Expand(%q) = %q, want %q", s, got, want)
		}
	})
}
