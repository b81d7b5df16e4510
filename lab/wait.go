package lab

import (
	"context"
	"errors"
	"sync"
	"time"
)

// fatal is an error that does not go away by waiting.
type fatal struct{ error }

// poll calls f until it succeeds, fails with fatal, or d has passed. Then it returns f's last
// error.
func poll(ctx context.Context, d time.Duration, f func() error) error {
	deadline := time.After(d)
	for {
		err := f()
		var final fatal
		if err == nil {
			return nil
		}
		if errors.As(err, &final) {
			return final.error
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		case <-deadline:
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// parallel runs the steps in their order, no more than most at once, and waits for all of them. The
// first failure cancels the rest and is returned; steps that have not begun then do not begin.
func parallel(ctx context.Context, most int, steps []func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	turns := make(chan struct{}, most)
	var running sync.WaitGroup
	for _, step := range steps {
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			if err := step(ctx); err != nil {
				cancel(err)
			}
			<-turns
		})
	}
	running.Wait()
	return context.Cause(ctx)
}
