package lab

import (
	"context"
	"errors"
	"time"
)

// fatal is an error that waiting does not mend.
type fatal struct{ error }

// poll calls f until it succeeds, fails for good, or d has passed; then it
// returns f's last error.
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

// parallel runs all steps at once and waits for all; the first failure cancels
// the rest and is what it returns.
func parallel(ctx context.Context, steps []func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	results := make(chan error, len(steps))
	for _, step := range steps {
		go func() { results <- step(ctx) }()
	}
	var first error
	for range steps {
		if err := <-results; err != nil && first == nil {
			first = err
			cancel()
		}
	}
	return first
}
