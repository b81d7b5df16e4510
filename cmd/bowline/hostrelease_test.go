package main

import (
	"errors"
	"io"
	"testing"

	"github.com/bowline-k8s/bowline/handover"
)

// What a release leaves is an error that carries it, for a caller without a terminal;
// for the command it is one that was printed already.
func TestReleaseReturnsWhatStays(t *testing.T) {
	r := &release{out: io.Discard}
	listing := handover.Listing{}
	err := r.tell(listing, listing, handover.Ours{}, []string{"/etc/a: edited since", "/etc/b: not readable"})
	var left *leftovers
	if !errors.As(err, &left) || len(left.names) != 2 || !errors.Is(err, errSaid) {
		t.Fatalf("%v", err)
	}
	if want := "this stays of Bowline's: /etc/a: edited since; /etc/b: not readable"; err.Error() != want {
		t.Errorf("%q, not %q", err, want)
	}
	if err := r.tell(listing, listing, handover.Ours{}, nil); err != nil {
		t.Error(err)
	}
}
