package podconfig

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// faultLog reports a fault of a source once, and again when its text changes. reportAtOnce reports may
// come in a row, as someone who edits a manifest makes one mistake after another; then one every
// reportAgain, as an error's text may differ each time.
type faultLog struct {
	event func(reason, message string)
	mu    *sync.Mutex
	last  map[string]*report // by subject
}

// report is the state of the reports about one subject.
type report struct {
	text  string    // empty if there is no fault
	turns int       // reports that are allowed now
	since time.Time // when the next one started to accrue
}

const (
	reportAtOnce = 5
	reportAgain  = 10 * time.Minute
)

// turn says whether a report is allowed now, and counts it.
func (t *report) turn(now time.Time) bool {
	if n := int(now.Sub(t.since) / reportAgain); n > 0 {
		t.turns, t.since = min(t.turns+n, reportAtOnce), t.since.Add(time.Duration(n)*reportAgain)
	}
	if t.turns == 0 {
		return false
	}
	t.turns--
	return true
}

func newFaultLog(event func(reason, message string)) faultLog {
	return faultLog{event: event, mu: &sync.Mutex{}, last: map[string]*report{}}
}

// fault handles a fault, and returns whether it was reported.
func (t faultLog) fault(ctx context.Context, about, reason, message string) bool {
	t.mu.Lock()
	now := time.Now()
	last := t.last[about]
	if last == nil {
		last = &report{turns: reportAtOnce, since: now}
		t.last[about] = last
	}
	report := last.text != message && last.turn(now)
	if report || last.text == "" {
		last.text = message
	}
	t.mu.Unlock()
	if !report {
		return false
	}
	klog.FromContext(ctx).Error(nil, "Failed to read static pods", "from", about, "reason", reason, "message", message)
	t.event(reason, message)
	return true
}

func (t faultLog) well(ctx context.Context, about string) {
	t.mu.Lock()
	was := false
	if last := t.last[about]; last != nil {
		was, last.text = last.text != "", ""
	}
	t.mu.Unlock()
	if was {
		klog.FromContext(ctx).Info("Read static pods again", "from", about)
	}
}

// only forgets every subject that keep does not want.
func (t faultLog) only(keep func(about string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for about := range t.last {
		if !keep(about) {
			delete(t.last, about)
		}
	}
}
