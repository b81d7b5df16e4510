package podconfig

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Several mistakes in a row are each reported; a text that always differs is not reported every
// time.
func TestFaultLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var recorded []string
		faults := newFaultLog(func(reason, message string) { recorded = append(recorded, message) })
		want := func(what string, n int) {
			t.Helper()
			if len(recorded) != n {
				t.Errorf("%s: recorded %d: %q", what, len(recorded), recorded)
			}
			recorded = nil
		}
		for range 3 {
			faults.fault(t.Context(), "a", "Bad", "the same")
		}
		want("the same thrice", 1)
		faults.fault(t.Context(), "a", "Bad", "another")
		want("a second mistake", 1)
		faults.fault(t.Context(), "b", "Bad", "another")
		want("the same of another", 1)
		faults.well(t.Context(), "a")
		faults.fault(t.Context(), "a", "Bad", "another")
		want("again, after it was well", 1)
		for i := range 6 * 60 * 3 { // an hour of looks
			faults.fault(t.Context(), "a", "Bad", fmt.Sprintf("from port %d", i))
			time.Sleep(20 * time.Second / 6)
		}
		if len(recorded) < 5 || len(recorded) > 10 {
			t.Errorf("in an hour it was notified %d times: %q", len(recorded), recorded)
		}
		recorded = nil
		faults.only(func(string) bool { return false })
		faults.fault(t.Context(), "a", "Bad", "another")
		want("of a source that is new", 1)
	})
}
