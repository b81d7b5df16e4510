package syncloop

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// How long a call may continue after its operation has ended.
func TestSettled(t *testing.T) {
	for _, tc := range []struct {
		name  string
		cause error
		want  time.Duration
	}{
		{"the process stops", context.Canceled, settleTime},
		{"the worker cancels the operation", errAborted, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				call, done := settled(ctx)
				defer done()
				time.Sleep(time.Hour)
				if call.Err() != nil {
					t.Fatal("the call ended before its operation")
				}
				began := time.Now()
				cancel(tc.cause)
				<-call.Done()
				if took := time.Since(began); took != tc.want {
					t.Errorf("the call ended %s after its operation, want %s", took, tc.want)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) { // fails if a goroutine or timer outlives the call
		ctx, cancel := context.WithCancel(t.Context())
		call, done := settled(ctx)
		cancel()
		synctest.Wait()
		done()
		if !errors.Is(call.Err(), context.Canceled) {
			t.Error("the context outlives its call")
		}
	})
}
