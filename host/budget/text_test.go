package budget

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for _, s := range []string{"", "short", strings.Repeat("x", MaxText)} {
		if Text(s) != s {
			t.Errorf("%d bytes are changed", len(s))
		}
	}
	long := "begin " + strings.Repeat("ä", 1<<20) + " end"
	got := Text(long)
	if len(got) > MaxText || !utf8.ValidString(got) || !strings.HasPrefix(got, "begin ä") || !strings.HasSuffix(got, "ä end") ||
		!strings.Contains(got, "bytes left out") {
		t.Errorf("%d bytes: %.100q ... %q", len(got), got, got[max(0, len(got)-20):])
	}
	if got := Shorten(long, 64); len(got) > 64 || !strings.HasPrefix(got, "begin") || !strings.HasSuffix(got, "end") {
		t.Errorf("%q", got)
	}
}
