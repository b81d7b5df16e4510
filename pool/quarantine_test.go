package pool

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/config"
)

var errHostile = errors.New("too much")

// TestOneHostIsHostile: whether the driver returns a hostile error or panics, it is tried again
// with growing pauses of at most 32 minutes, and the other host is not affected.
func TestOneHostIsHostile(t *testing.T) {
	for name, end := range map[string]func() error{
		"exceeds a budget": func() error { return errors.Join(errors.New("look"), errHostile) },
		"panics":           func() error { panic("found") },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var tries []time.Duration
				var good atomic.Int32
				began := time.Now()
				p := exactly(New(func(ctx context.Context, h *config.Host) error {
					if h.Name == "good" {
						good.Add(1)
						return forever(ctx, h)
					}
					tries = append(tries, time.Since(began))
					return end()
				}, Options{EndWhenAllFail: true, Hostile: func(err error) bool { return errors.Is(err, errHostile) }}))
				p.Set(of(at("bad"), at("good")))
				stop := running(t, p)
				time.Sleep(2*time.Hour + time.Second)
				b := p.States()["bad"]
				if b.Phase != Quarantined || b.Err == nil || b.Quarantines != 8 || b.NextTry.Sub(began) != 127*time.Minute {
					t.Errorf("it is %+v", b)
				}
				var panicked *PanicError
				if name == "panics" && (!errors.As(b.Err, &panicked) || len(panicked.Stack) == 0) {
					t.Errorf("it ended with %v", b.Err)
				}
				stop()
				if good.Load() != 1 {
					t.Errorf("the other host was started %d times", good.Load())
				}
				want := []time.Duration{0, 1, 3, 7, 15, 31, 63, 95}
				for i := range want {
					want[i] *= time.Minute
				}
				if !slices.Equal(tries, want) {
					t.Errorf("it was tried at %v, want %v", tries, want)
				}
			})
		})
	}
}

// TestQuarantineEnds: a host that behaves again is managed. After more than half an hour of that,
// the next quarantine is as short as the first.
func TestQuarantineEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ends []time.Duration // the driver fails after these, in order
		var pauses []time.Duration
		var ended time.Time
		ends = []time.Duration{0, 0, 5 * time.Minute, 40 * time.Minute, 0}
		p := exactly(New(func(ctx context.Context, h *config.Host) error {
			if !ended.IsZero() {
				pauses = append(pauses, time.Since(ended))
			}
			if len(ends) == 0 {
				return forever(ctx, h)
			}
			time.Sleep(ends[0])
			ends, ended = ends[1:], time.Now()
			return errHostile
		}, Options{Hostile: func(error) bool { return true }}))
		p.Set(of(at("a")))
		stop := running(t, p)
		time.Sleep(3 * time.Hour)
		if s := p.States()["a"]; s.Phase != Managed {
			t.Errorf("it is %+v", s)
		}
		stop()
		want := []time.Duration{1, 2, 4, 1, 2}
		for i := range want {
			want[i] *= time.Minute
		}
		if !slices.Equal(pauses, want) {
			t.Errorf("the pauses are %v, want %v", pauses, want)
		}
	})
}

// TestQuarantineOfAChangedHost: a host that was repaired by a change does not wait.
func TestQuarantineOfAChangedHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := exactly(New(func(ctx context.Context, h *config.Host) error {
			if h.Labels["repaired"] != "" {
				return forever(ctx, h)
			}
			return errHostile
		}, Options{Hostile: func(error) bool { return true }}))
		p.Set(of(at("a")))
		stop := running(t, p)
		defer stop()
		time.Sleep(10 * time.Second)
		if s := p.States()["a"]; s.Phase != Quarantined {
			t.Fatalf("it is %+v", s)
		}
		p.Set(of(at("a", "repaired")))
		time.Sleep(time.Second)
		if s := p.States()["a"]; s.Phase != Managed || s.Quarantines != 0 {
			t.Errorf("it is %+v", s)
		}
	})
}

// TestTheOnlyHostIsHostile: Run must not end, because a restarted process would run the host at
// once.
func TestTheOnlyHostIsHostile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		p := exactly(New(func(context.Context, *config.Host) error { tries++; return errHostile },
			Options{EndWhenAllFail: true, Hostile: func(error) bool { return true }}))
		p.Set(of(at("a")))
		stop := running(t, p)
		time.Sleep(10 * time.Minute)
		stop()
		if tries != 4 {
			t.Errorf("it was tried %d times", tries)
		}
	})
}
