package release

import "testing"

// What a release leaves behind is in its error, for a caller without a terminal.
func TestReleaseReturnsWhatStays(t *testing.T) {
	err := (&Result{Left: []string{"/etc/a: edited since", "/etc/b: not readable"}}).Err()
	if want := "left of Bowline: /etc/a: edited since; /etc/b: not readable"; err == nil || err.Error() != want {
		t.Errorf("%v, not %q", err, want)
	}
	if err := (&Result{}).Err(); err != nil {
		t.Error(err)
	}
}
