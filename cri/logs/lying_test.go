package logs

import (
	"context"
	"errors"
	"math"
	"testing"
)

// liar returns a byte at every offset, and none of its lines ends.
type liar struct {
	reads int
	end   func()
}

func (l *liar) ReadAt(p []byte, _ int64) (int, error) {
	if l.reads++; l.reads == 10 {
		l.end()
	}
	if l.reads > 1000 {
		return 0, errors.New("read on and on")
	}
	return len(p), nil
}

// TestSizeThatLies: the search for the last lines of a file with a reported size of 2^63-1 bytes
// ends when its caller's context ends.
func TestSizeThatLies(t *testing.T) {
	for _, n := range []int64{0, 10} {
		ctx, cancel := context.WithCancel(t.Context())
		l := &liar{end: cancel}
		if _, err := tailStart(ctx, l, math.MaxInt64, n); !errors.Is(err, context.Canceled) || l.reads != 10 {
			t.Errorf("the last %d lines: %d reads, %v", n, l.reads, err)
		}
		cancel()
	}
}
