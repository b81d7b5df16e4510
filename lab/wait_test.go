package lab

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestParallel(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name  string
		most  int
		errs  []error
		err   error
		took  time.Duration // each step takes a second
		began []int
	}{
		{"none", 2, nil, nil, 0, nil},
		{"as many as may", 3, []error{nil, nil, nil}, nil, time.Second, []int{0, 1, 2}},
		{"more than may", 2, []error{nil, nil, nil}, nil, 2 * time.Second, []int{0, 1, 2}},
		{"a failure keeps the rest from beginning", 1, []error{nil, broken, nil}, broken, 2 * time.Second, []int{0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				var began []int
				steps := make([]func(context.Context) error, len(c.errs))
				running, most := 0, 0
				for i, err := range c.errs {
					steps[i] = func(context.Context) error {
						mu.Lock()
						began = append(began, i)
						running++
						most = max(most, running)
						mu.Unlock()
						time.Sleep(time.Second)
						mu.Lock()
						running--
						mu.Unlock()
						return err
					}
				}
				start := time.Now()
				if err := parallel(t.Context(), c.most, steps); err != c.err {
					t.Errorf("%v, want %v", err, c.err)
				}
				slices.Sort(began)
				if took := time.Since(start); took != c.took || !slices.Equal(began, c.began) || most > c.most {
					t.Errorf("took %s, began %v, %d at once; want %s, %v, %d at most", took, began, most, c.took, c.began, c.most)
				}
			})
		})
	}
}

func TestParallelCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	began := false
	err := parallel(ctx, 1, []func(context.Context) error{func(context.Context) error { began = true; return nil }})
	if !errors.Is(err, context.Canceled) || began {
		t.Errorf("%v, began %v", err, began)
	}
}
