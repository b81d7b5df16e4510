package node

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/notify"
)

const (
	// clockPeriod is how often the host's clock is compared with the local one.
	clockPeriod = 5 * time.Minute
	// clockRetry is the pause after a failed comparison, and the shortest one before a comparison
	// that doubt asks for.
	clockRetry = 10 * time.Second
)

// clock measures the offset between the host's clock and the local one.
type clock struct {
	ask     func(context.Context) (offset, uncertainty time.Duration, err error)
	changed func() <-chan struct{} // closed when the link's state changes
	doubt   notify.Signal          // sent if the runtime reports a time that contradicts the offset
	offset  *atomic.Int64          // the host's clock minus the local one, in nanoseconds
}

func newClock(m *connect.Host) clock {
	c := clock{
		ask: m.ClockOffset, doubt: notify.New(), offset: &atomic.Int64{},
		changed: func() <-chan struct{} { return nil },
	}
	if m.Link != nil {
		c.changed = m.Link.Changed
	}
	return c
}

// Offset is the host's clock minus the local one, as last measured.
func (c clock) Offset() time.Duration { return time.Duration(c.offset.Load()) }

// measure keeps the old offset on an error: clocks do not drift far in minutes.
func (c clock) measure(ctx context.Context) error {
	offset, _, err := c.ask(ctx)
	if err == nil {
		c.offset.Store(int64(offset))
	}
	return err
}

// watch measures the offset every clockPeriod; when the link changes, as a host that was away may
// have set its clock; and on doubt, as a host without a hardware clock sets its clock some time
// after boot.
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
