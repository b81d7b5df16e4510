package provider

import (
	"testing"
	"time"
)

// TestStartup: a node that this process registers is reported once, when it is registered and ready; one
// that existed is not.
func TestStartup(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	for name, c := range map[string]struct {
		steps func(s *startup)
		want  []Startup
	}{
		"registered, then ready": {func(s *startup) {
			s.asked(at(1))
			s.asked(at(2)) // a retry
			s.created(at(3))
			s.found()
			s.ready(at(4), false)
			s.ready(at(5), true)
			s.ready(at(6), true)
		}, []Startup{{at(1), at(3), at(5)}}},
		"ready first": {func(s *startup) {
			s.ready(at(1), true)
			s.asked(at(2))
			s.created(at(3))
			s.created(at(4)) // it was deleted
		}, []Startup{{at(2), at(3), at(3)}}},
		"it existed": {func(s *startup) {
			s.asked(at(1))
			s.found()
			s.ready(at(2), true)
			s.created(at(3))
		}, nil},
		"not ready": {func(s *startup) {
			s.asked(at(1))
			s.created(at(2))
			s.ready(at(3), false)
		}, nil},
	} {
		var got []Startup
		s := &startup{report: func(u Startup) { got = append(got, u) }}
		c.steps(s)
		if len(got) != len(c.want) || len(got) > 0 && got[0] != c.want[0] {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	(&startup{}).ready(at(1), true) // no one needs it
}
