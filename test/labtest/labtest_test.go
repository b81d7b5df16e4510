package labtest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"
)

func TestDiff(t *testing.T) {
	before := Snapshot{"mounts": {"/a", "/a", "/b"}, "shims": {"x"}}
	if d := Diff(before, before); len(d) != 0 {
		t.Errorf("of one with itself: %q", d)
	}
	after := Snapshot{"mounts": {"/a", "/b", "/c"}}
	want := []string{"+ mounts: /c", "- mounts: /a", "- shims: x"}
	if d := Diff(before, after); !slices.Equal(d, want) {
		t.Errorf("got %q, want %q", d, want)
	}
}

func TestUntil(t *testing.T) {
	n := 0
	if err := Until(t.Context(), time.Minute, "third", func(context.Context) error {
		if n++; n < 3 {
			return errors.New("not yet")
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	cause := errors.New("never")
	if err := Until(t.Context(), time.Millisecond, "x", func(context.Context) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("the last error is lost: %v", err)
	}
	if err := Holds(t.Context(), time.Minute, "x", func(context.Context) error { return cause }); !errors.Is(err, cause) {
		t.Errorf("a condition that fails held: %v", err)
	}
}
