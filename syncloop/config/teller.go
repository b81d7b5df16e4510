package config

import (
	"context"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// teller tells of what is wrong with a source once, and again when it has changed: a few
// times at once, as somebody who edits makes one mistake after another, and then seldom, as
// an error may have words in it that are never the same.
type teller struct {
	event func(reason, message string)
	mu    *sync.Mutex
	last  map[string]*telling // by what it is about
}

// telling is what was told of one thing.
type telling struct {
	text  string    // empty: it is well
	turns int       // events that may come now
	since time.Time // from which the next turn is counted
}

const (
	tellAtOnce = 5
	tellAgain  = 10 * time.Minute
)

// turn says whether an event may come now, and counts it.
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
		klog.FromContext(ctx).Info("Static pods can be read again", "from", about)
	}
}

// only forgets what is about anything else.
func (t teller) only(keep func(about string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for about := range t.last {
		if !keep(about) {
			delete(t.last, about)
		}
	}
}
