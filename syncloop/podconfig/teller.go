package podconfig

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// teller reports a fault of a source once, and again when its text changes. tellAtOnce reports may
// come in a row, as someone who edits a manifest makes one mistake after another; then one every
// tellAgain, as an error's text may differ each time.
type teller struct {
	event func(reason, message string)
	mu    *sync.Mutex
	last  map[string]*telling // by subject
}

// telling is the state of the reports about one subject.
type telling struct {
	text  string    // empty if there is no fault
	turns int       // reports that are allowed now
	since time.Time // when the next one started to accrue
}

const (
	tellAtOnce = 5
	tellAgain  = 10 * time.Minute
)

// turn says whether a report is allowed now, and counts it.
func (t *telling) turn(now time.Time) bool {
	if n := int(now.Sub(t.since) / tellAgain); n > 0 {
		t.turns, t.since = min(t.turns+n, tellAtOnce), t.since.Add(time.Duration(n)*tellAgain)
	}
	if t.turns == 0 {
		return false
	}
	t.turns--
	return true
}

func newTeller(event func(reason, message string)) teller {
	return teller{event: event, mu: &sync.Mutex{}, last: map[string]*telling{}}
}

func (t teller) fault(ctx context.Context, about, reason, message string) {
	t.mu.Lock()
	now := time.Now()
	told := t.last[about]
	if told == nil {
		told = &telling{turns: tellAtOnce, since: now}
		t.last[about] = told
	}
	tell := told.text != message && told.turn(now)
	if tell || told.text == "" {
		told.text = message
	}
	t.mu.Unlock()
	if !tell {
		return
	}
	klog.FromContext(ctx).Info(message)
	t.event(reason, message)
}

func (t teller) well(ctx context.Context, about string) {
	t.mu.Lock()
	was := false
	if told := t.last[about]; told != nil {
		was, told.text = told.text != "", ""
	}
	t.mu.Unlock()
	if was {
		klog.FromContext(ctx).Info("Read static pods again", "from", about)
	}
}

// only forgets every subject that keep does not want.
func (t teller) only(keep func(about string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for about := range t.last {
		if !keep(about) {
			delete(t.last, about)
		}
	}
}
