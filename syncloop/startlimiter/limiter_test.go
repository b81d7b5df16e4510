package startlimiter

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

func isQuiet(l *Limiter) bool {
	select {
	case <-l.Quiet():
		return true
	default:
		return false
	}
}

func TestTheUrgentGoFirstAndEachInItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(1, time.Minute)
		release, err := p.Take(t.Context(), false)
		testutil.Must(t, err)
		var mu sync.Mutex
		var order []string
		take := func(name string, urgent bool) {
			go func() {
				release, err := p.Take(t.Context(), urgent)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				release()
			}()
			synctest.Wait()
		}
		take("sandbox 1", false)
		take("sandbox 2", false)
		take("start 1", true)
		take("start 2", true)
		if isQuiet(p) {
			t.Error("quiet while a place is held")
		}
		release()
		release() // only the first call counts
		synctest.Wait()
		if want := []string{"start 1", "start 2", "sandbox 1", "sandbox 2"}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
		if !isQuiet(p) || p.held != 0 {
			t.Errorf("not quiet at the end: %d held", p.held)
		}
	})
}

func TestHangingCallDelaysNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(2, 3*time.Second)
		hung := make([]func(), 2)
		for i := range hung {
			hung[i], _ = p.Take(t.Context(), false)
		}
		began := time.Now()
		release, err := p.Take(t.Context(), false)
		testutil.Must(t, err)
		if waited := time.Since(began); waited != 3*time.Second {
			t.Errorf("waited %s for calls that hang", waited)
		}
		release()
		for _, r := range hung {
			r() // the hung calls return at last
		}
		if p.held != 0 || !isQuiet(p) {
			t.Errorf("%d held after all were given back", p.held)
		}
	})
}

func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(1, time.Minute)
		release, _ := p.Take(t.Context(), false)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.Take(ctx, true); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		release()
		if !isQuiet(p) {
			t.Error("who gave up is still waited for")
		}
	})
}

// Places never exceed the limit and are never lost, whatever the order of taking, releasing and
// giving up.
func TestPlacesAreNeitherLostNorMade(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		synctest.Test(t, func(t *testing.T) {
			limit := rapid.IntRange(1, 4).Draw(rt, "limit")
			p := New(limit, time.Hour)
			var wg sync.WaitGroup
			var mu sync.Mutex
			now, most := 0, 0
			for range rapid.IntRange(1, 30).Draw(rt, "takers") {
				urgent := rapid.Bool().Draw(rt, "urgent")
				at := time.Duration(rapid.IntRange(0, 20).Draw(rt, "at")) * time.Millisecond
				works := time.Duration(rapid.IntRange(0, 10).Draw(rt, "works")) * time.Millisecond
				patience := time.Duration(rapid.IntRange(0, 30).Draw(rt, "patience")) * time.Millisecond
				wg.Go(func() {
					time.Sleep(at)
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					release, err := p.Take(ctx, urgent)
					if err != nil {
						return
					}
					mu.Lock()
					now++
					most = max(most, now)
					mu.Unlock()
					time.Sleep(works)
					mu.Lock()
					now--
					mu.Unlock()
					release()
				})
			}
			wg.Wait()
			if most > limit {
				t.Errorf("%d at once with %d places", most, limit)
			}
			if p.held != 0 || !isQuiet(p) {
				t.Errorf("%d held, quiet %v at the end", p.held, isQuiet(p))
			}
		})
	})
}
