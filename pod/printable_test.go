package pod

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"containerd 2.1.4":            "containerd 2.1.4",
		"größer als 日本":               "größer als 日本",
		"a\nb\tc\r\nd\re":             "a b c d e",
		"\x1b[2Jgone\x1b]0;title\x07": `\x1b[2Jgone\x1b]0;title\a`,
		"\u009b2J":                    `\u009b2J`,
		"\u202egnp.exe":               `\u202egnp.exe`,
		"bad \xff\x9b utf-8":          `bad \xff\x9b utf-8`,
		"\x00\x7f":                    `\x00\x7f`,
	} {
		if got := Printable(in); got != want {
			t.Errorf("%q is %q, not %q", in, got, want)
		}
	}
	if got := PrintableLines("a\x1b\nb\n"); got != "a\\x1b\nb\n" {
		t.Errorf("lines: %q", got)
	}
}

// FuzzPrintable: any text becomes one line that is safe to print.
func FuzzPrintable(f *testing.F) {
	for _, s := range []string{"", "a b", "\x1b[31m", "\xff", "\u202e", "\r\n", "a\tb", "�", "\u2028"} {
		f.Add(s)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		got := Printable(s)
		if !utf8.ValidString(got) || strings.IndexFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
			t.Errorf("%q is %q", s, got)
		}
		if again := Printable(got); again != got {
			t.Errorf("%q is %q, and that is %q", s, got, again)
		}
	})
}

// FuzzPrintableJSON: any text in JSON is printed as text only, and stays the same for a program.
func FuzzPrintableJSON(f *testing.F) {
	for _, s := range []string{"", "größer", "\x1b[31m", "\u009b2J", "\u202e\u2066", "\x7f", "\U000e0041", "\u2028\r\n\t", `\u009b"`, "\xff"} {
		f.Add(s)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		plain, err := json.MarshalIndent(map[string]any{s: []string{s}}, "", "  ")
		testutil.Must(t, err)
		got := PrintableJSON(plain)
		if !utf8.Valid(got) || bytes.IndexFunc(got, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) >= 0 {
			t.Errorf("%q is %q", s, got)
		}
		var before, after any
		testutil.Must(t, json.Unmarshal(plain, &before))
		if err := json.Unmarshal(got, &after); err != nil || !reflect.DeepEqual(before, after) {
			t.Errorf("%q is %q: %v, want the value %q", s, got, err, before)
		}
	})
}

// FuzzWhyText: any text in a report is printed as text only.
func FuzzWhyText(f *testing.F) {
	for _, s := range []string{"\x1b[2J", "a\nDECISIONS", "\u202e", "a\tb"} {
		f.Add(s)
	}
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		if s == "" {
			return // an unknown fact has no line
		}
		r := report()
		lines := strings.Count(r.Text(noon), "\n")
		for _, field := range []*string{&r.Namespace, &r.Name, &r.UID, &r.Node, &r.Phase, &r.Reason, &r.Waits.For, &r.Observed.Stale,
			&r.Observed.Sandboxes[0].ID, &r.Observed.Sandboxes[0].IPs[0], &r.Observed.Containers[0].Name, &r.Observed.Containers[0].ID,
			&r.Observed.Containers[0].State, &r.Observed.Containers[1].Detail, &r.InFlight[0].What, &r.InFlight[0].Reason,
			&r.Backoffs[0].What, &r.Backoffs[0].Reason, &r.Backoffs[0].Message, &r.Decisions[0].Phase, &r.Decisions[0].Reason,
			&r.Decisions[0].Actions[0].What, &r.Decisions[0].Actions[0].Outcome, &r.Decisions[1].Reason} {
			*field = s
		}
		r.Ending = &WhyEnding{Cause: s, At: noon.Add(-time.Minute), Message: s}
		text := r.Text(noon)
		if strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) >= 0 || !utf8.ValidString(text) {
			t.Errorf("%q: the report is %q", s, text)
		}
		if n := strings.Count(text, "\n"); n != lines+1 { // one more for the ending
			t.Errorf("%q: %d lines, not %d:\n%s", s, n, lines+1, text)
		}
	})
}
