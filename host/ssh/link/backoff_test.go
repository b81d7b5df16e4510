package link

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

func TestBackoff(t *testing.T) {
	var b backoff
	now := time.Unix(1e9, 0)
	refused := fmt.Errorf("jump: %w", &endpoint.AuthError{})
	for i, c := range []struct {
		after time.Duration // since the one before
		up    time.Duration // of a connection that was lost, or 0 for a failed attempt
		err   error
		want  time.Duration // without jitter
	}{
		{0, 0, errCut, time.Second},
		{0, 0, errCut, 2 * time.Second},
		{0, 0, errCut, 4 * time.Second},
		{0, 0, errCut, 5 * time.Second},
		{0, 0, errCut, 5 * time.Second},
		{0, 0, refused, 10 * time.Second},
		{0, 0, refused, 20 * time.Second},
		{time.Minute, 0, errCut, 30 * time.Second},
		{0, 0, errCut, 30 * time.Second},
		{0, 0, refused, 40 * time.Second},
		{0, 0, refused, 80 * time.Second},
		{0, 0, refused, 160 * time.Second},
		{0, 0, refused, 300 * time.Second},
		{0, 0, &endpoint.HostKeyError{}, 300 * time.Second},
		{0, time.Second, errCut, 30 * time.Second}, // it did not last
		{0, time.Hour, errCut, 0},
		{0, 0, errCut, time.Second},
		{time.Second, 0, refused, 10 * time.Second},
	} {
		now = now.Add(c.after)
		random := rand.Float64()
		copied := b
		next := func(b *backoff, random float64) time.Duration {
			if c.up > 0 {
				return b.lost(now, c.up, c.err, random)
			}
			return b.fail(now, c.err, random)
		}
		if got := next(&copied, random); got > max(c.want, 500*time.Millisecond) || got < c.want*4/5 || c.want >= minDelay && got < minDelay {
			t.Errorf("step %d with random %f: %s, want about %s", i, random, got, c.want)
		}
		if got := next(&b, 0); got != c.want {
			t.Errorf("step %d: %s, want %s", i, got, c.want)
		}
	}
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDeadline()
		at := func(want bool, when string) {
			t.Helper()
			synctest.Wait()
			if closedNow(d.passed()) != want {
				t.Errorf("%s: passed is %v", when, !want)
			}
		}
		at(false, "at first")
		d.set(time.Now().Add(-time.Second))
		at(true, "in the past")
		d.set(time.Time{})
		at(false, "taken away")
		d.set(time.Now().Add(time.Second))
		waiting := d.passed()
		d.set(time.Now().Add(3 * time.Second))
		time.Sleep(2 * time.Second)
		at(false, "moved on")
		time.Sleep(time.Second)
		at(true, "at its time")
		if !closedNow(waiting) {
			t.Error("one that waited before the move was not told")
		}
		d.set(time.Now().Add(time.Second))
		d.set(time.Time{})
		time.Sleep(time.Hour)
		at(false, "taken away before its time")
	})
}

func TestDownErrorWords(t *testing.T) {
	for want, e := range map[string]*DownError{
		"ssh: no answer from 10.0.0.7:22 for 12 s":             {Address: "10.0.0.7:22", For: 12*time.Second + 1},
		"ssh: no answer from 10.0.0.7:22":                      {Address: "10.0.0.7:22", For: time.Millisecond},
		"ssh: no answer from 10.0.0.7:22 for 9 s":              {Address: "10.0.0.7:22", Cause: &silentError{9 * time.Second}},
		"ssh: no answer from 10.0.0.7:22 for 70 s":             {Address: "10.0.0.7:22", For: 70 * time.Second, Cause: &silentError{9 * time.Second}},
		"ssh: no connection to 10.0.0.7:22 for 3 s: it is off": {Address: "10.0.0.7:22", For: 3 * time.Second, Cause: errors.New("it is off")},
	} {
		if e.Error() != want {
			t.Errorf("got %q, want %q", e, want)
		}
	}
}
