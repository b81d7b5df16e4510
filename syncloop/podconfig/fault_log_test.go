package podconfig

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"
)

// Several mistakes in a row are each reported; a text that always differs is not reported every
// time.
func TestTeller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told []string
		tell := newFaultLog(func(reason, message string) { told = append(told, message) })
		want := func(what string, n int) {
			t.Helper()
			if len(told) != n {
				t.Errorf("%s: told %d: %q", what, len(told), told)
			}
			told = nil
		}
		for range 3 {
			tell.fault(t.Context(), "a", "Bad", "the same")
		}
		want("the same thrice", 1)
		tell.fault(t.Context(), "a", "Bad", "another")
		want("a second mistake", 1)
		tell.fault(t.Context(), "b", "Bad", "another")
		want("the same of another", 1)
		tell.well(t.Context(), "a")
		tell.fault(t.Context(), "a", "Bad", "another")
		want("again, after it was well", 1)
		for i := range 6 * 60 * 3 { // an hour of looks
			tell.fault(t.Context(), "a", "Bad", fmt.Sprintf("from port %d", i))
			time.Sleep(20 * time.Second / 6)
		}
		if len(told) < 5 || len(told) > 10 {
			t.Errorf("in an hour it was notified %d times: %q", len(told), told)
		}
		told = nil
		tell.only(func(string) bool { return false })
		tell.fault(t.Context(), "a", "Bad", "another")
		want("of a source that is new", 1)
	})
}
