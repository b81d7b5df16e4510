package images

import (
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/wall/walltest"
)

// The time that the machine slept counts as waiting, and a clock that is set back prolongs no wait.
func TestBackoffFollowsBothClocks(t *testing.T) {
	b, now := newBackoff(10*time.Second, 5*time.Minute), time.Now()
	for range 10 {
		b.fail("key", "no such image", now)
	}
	for what, c := range map[string]struct {
		now  time.Time
		want bool
	}{
		"at once":                      {now, true},
		"after a sleep":                {walltest.Slept(now, 6*time.Minute), false},
		"by a clock that was set back": {walltest.Slept(now.Add(6*time.Minute), -time.Hour), false},
		"and before its time":          {walltest.Slept(now.Add(time.Minute), -time.Hour), true},
	} {
		if _, _, waiting := b.state("key", c.now); waiting != c.want {
			t.Errorf("%s: waiting %t", what, waiting)
		}
	}
	if _, _, waiting := b.state("key", walltest.Slept(now, time.Hour)); waiting {
		t.Error("it waits an hour later")
	}
	if until := b.fail("key", "no such image", walltest.Slept(now, time.Hour)); until.Sub(now) != 10*time.Second {
		t.Errorf("a new story begins with a wait of %v", until.Sub(now))
	}
}
