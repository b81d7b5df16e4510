package main

import (
	"context"
	"sync/atomic"
	"time"
)

const (
	// clockPeriod is how often the machine's clock is compared with ours.
	clockPeriod = 5 * time.Minute
	// clockRetry follows a comparison that failed, and is the least time between two.
	clockRetry = 10 * time.Second
)

// clock keeps how far the machine's clock is off ours.
type clock struct {
	ask     func(context.Context) (offset, uncertainty time.Duration, err error)
	changed func() <-chan struct{} // closes when the link has changed
	doubt   nudge                  // the runtime told a time that cannot be by the offset
	offset  *atomic.Int64          // the machine's clock minus ours, nanoseconds
}

func newClock(m *machine) clock {
	c := clock{
		ask: m.ClockOffset, doubt: make(nudge, 1), offset: &atomic.Int64{},
		changed: func() <-chan struct{} { return nil },
	}
	if m.link != nil {
		c.changed = m.link.Changed
	}
	return c
}

// Offset is the machine's clock minus ours, as last measured.
func (c clock) Offset() time.Duration { return time.Duration(c.offset.Load()) }

// measure leaves the offset as it was where there is an error: clocks do not drift
// far in minutes.
func (c clock) measure(ctx context.Context) error {
	offset, _, err := c.ask(ctx)
	if err == nil {
		c.offset.Store(int64(offset))
	}
	return err
}

// watch measures anew from time to time; when the link changes, since who was away
// may have set its clock; and when the runtime tells of times that cannot be: a
// machine without a clock of its own sets it some time after its start.
func (c clock) watch(ctx context.Context) error {
	for {
		changed := c.changed()
		pause := clockPeriod
		if err := c.measure(ctx); err != nil {
			pause = clockRetry
		}
		measured := time.Now()
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
		case <-c.doubt:
			timer.Reset(max(clockRetry-time.Since(measured), 0))
			select {
			case <-timer.C:
			case <-ctx.Done():
			}
		}
		timer.Stop()
		if ctx.Err() != nil {
			return nil
		}
	}
}
