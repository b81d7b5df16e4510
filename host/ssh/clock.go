package ssh

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
)

// clockLife is how long a measurement is taken for the present offset: clocks that
// are not steered drift some milliseconds in it.
const clockLife = time.Minute

// clock is the last measurement.
type clock struct {
	mu                  sync.Mutex
	at                  time.Time
	offset, uncertainty time.Duration
}

// ClockOffset is measured over the shell, the best of three, and kept for a minute.
// The uncertainty is half the round trip.
func (h *Host) ClockOffset(ctx context.Context) (offset, uncertainty time.Duration, err error) {
	err = run(h, ctx, "ClockOffset", shortDeadline, func(ctx context.Context) error {
		h.clock.mu.Lock()
		defer h.clock.mu.Unlock()
		if h.clock.at.IsZero() || time.Since(h.clock.at) > clockLife {
			if err := h.measure(ctx); err != nil {
				return err
			}
		}
		offset, uncertainty = h.clock.offset, h.clock.uncertainty
		return nil
	})
	return offset, uncertainty, err
}

func (h *Host) measure(ctx context.Context) error {
	for i := range 3 {
		sent := time.Now()
		res, err := h.script(ctx, "read", "the clock", scriptClock, nil, nil)
		if err != nil {
			return err
		}
		trip := time.Since(sent)
		there, coarse, err := parseClock(string(res.Stdout))
		if err != nil {
			return err
		}
		if unc := trip/2 + coarse; i == 0 || unc < h.clock.uncertainty {
			h.clock.offset, h.clock.uncertainty = there.Sub(sent.Add(trip/2)), unc
		}
	}
	h.clock.at = time.Now()
	return nil
}

// parseClock reads date +%s.%N; coarse is what it may be off where date knows no %N.
func parseClock(s string) (t time.Time, coarse time.Duration, err error) {
	whole, fraction, _ := strings.Cut(strings.TrimSpace(s), ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return t, 0, fmt.Errorf("the machine's clock says %q", s)
	}
	if len(fraction) != 9 || strings.Trim(fraction, "0123456789") != "" {
		return time.Unix(seconds, 0).Add(500 * time.Millisecond), 500 * time.Millisecond, nil
	}
	return time.Unix(seconds, nanoseconds(fraction)), 0, nil
}
