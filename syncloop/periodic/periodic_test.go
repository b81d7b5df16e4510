package periodic

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// An error is logged when it occurs, not while it stays the same, and again after a successful
// turn.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		errs := []error{errors.New("a"), errors.New("a"), nil, errors.New("a"), errors.New("b")}
		began := time.Now()
		turns := 0
		if err := Run(ctx, time.Minute, func(context.Context) error {
			turns++
			if took := time.Since(began); took != time.Duration(turns)*time.Minute {
				t.Errorf("turn %d came after %s", turns, took)
			}
			if turns == len(errs) {
				cancel()
			}
			return errs[turns-1]
		}, func(log klog.Logger, err error) { log.Error(err, "Failed to test, will retry") }); err != nil {
			t.Error(err)
		}
		var logged []string
		for _, e := range logger.GetSink().(ktesting.Underlier).GetBuffer().Data() {
			logged = append(logged, fmt.Sprint(e.Message, e.ParameterKVList, e.Err))
		}
		// The error of the last turn is not logged, because ctx has ended.
		if want := []string{"Failed to test, will retry[] a", "Failed to test, will retry[] a"}; !slices.Equal(logged, want) {
			t.Errorf("logged %q, want %q", logged, want)
		}
	})
}
