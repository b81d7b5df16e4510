package ssh

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"
)

// goodClock is an uncertainty that needs no further measurement.
const goodClock = 10 * time.Millisecond

// ClockOffset measures over the shell, up to three times, and returns the best result. The
// uncertainty is half the round trip.
func (h *Host) ClockOffset(ctx context.Context) (offset, uncertainty time.Duration, err error) {
	err = run(h, ctx, "ClockOffset", shortDeadline, func(ctx context.Context) error {
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
			if unc := trip/2 + coarse; i == 0 || unc < uncertainty {
				offset, uncertainty = there.Sub(sent.Add(trip/2)), unc
			}
			if uncertainty <= goodClock {
				break
			}
		}
		return nil
	})
	return offset, uncertainty, err
}

// parseClock reads the output of date +%s.%N; coarse is the possible error if date does not
// support %N.
func parseClock(s string) (t time.Time, coarse time.Duration, err error) {
	whole, fraction, _ := strings.Cut(strings.TrimSpace(s), ".")
	seconds, err := strconv.ParseInt(whole, 10, 64)
	if err != nil {
		return t, 0, fmt.Errorf("the host's clock returned %q", s)
	}
	if len(fraction) != 9 || strings.Trim(fraction, "0123456789") != "" {
		return time.Unix(seconds, 0).Add(500 * time.Millisecond), 500 * time.Millisecond, nil
	}
	return time.Unix(seconds, nanoseconds(fraction)), 0, nil
}
