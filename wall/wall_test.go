package wall

import (
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/wall/walltest"
)

func TestNowHasNoMonotonicReading(t *testing.T) {
	if now := Now(); now != now.Round(0) {
		t.Errorf("%v has one", now)
	}
}

func TestUntil(t *testing.T) {
	now := Now()
	for _, c := range []struct{ left, want time.Duration }{
		{-time.Hour, 0}, {0, 0}, {time.Second, time.Second}, {Glance, Glance}, {time.Hour, Glance},
	} {
		if got := Until(now.Add(c.left), now); got != c.want {
			t.Errorf("%v before: %v, want %v", c.left, got, c.want)
		}
	}
}

func TestPassed(t *testing.T) {
	now := time.Now()
	at := now.Add(time.Minute)
	for what, c := range map[string]struct {
		now  time.Time
		want bool
	}{
		"at once":                      {now, false},
		"in time":                      {at, true},
		"after a sleep":                {walltest.Slept(now, time.Hour), true},
		"by a clock that was set back": {walltest.Slept(at, -time.Hour), true},
		"by the wall clock alone":      {now.Round(0), false},
	} {
		if got := Passed(at, c.now); got != c.want {
			t.Errorf("%s: %t", what, got)
		}
	}
}
