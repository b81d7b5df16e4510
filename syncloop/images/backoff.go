package images

import (
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/wall"
)

// backoff counts failures by key: the wait after each one doubles from base to max. The Manager's
// mutex guards it.
type backoff struct {
	base, max time.Duration
	entries   map[string]backoffEntry
}

type backoffEntry struct {
	wait    time.Duration
	at      time.Time // of the last failure
	message string    // of the last failure
}

func newBackoff(base, max time.Duration) backoff {
	return backoff{base: base, max: max, entries: map[string]backoffEntry{}}
}

// expired reports whether a failure is so old (twice max) that the next one counts as the first.
func (b *backoff) expired(e backoffEntry, now time.Time) bool {
	return wall.Passed(e.at.Add(2*b.max), now)
}

// fail counts a failure and returns until when to wait.
func (b *backoff) fail(key, message string, now time.Time) time.Time {
	for k, e := range b.entries { // drop expired entries
		if b.expired(e, now) {
			delete(b.entries, k)
		}
	}
	wait := b.base
	if e, ok := b.entries[key]; ok {
		wait = min(2*e.wait, b.max)
	}
	b.entries[key] = backoffEntry{wait: wait, at: now, message: message}
	return now.Add(wait)
}

// state reports whether key is in back-off, until when, and for which failure.
func (b *backoff) state(key string, now time.Time) (until time.Time, message string, waiting bool) {
	e, ok := b.entries[key]
	if !ok || b.expired(e, now) {
		return time.Time{}, "", false
	}
	until = e.at.Add(e.wait)
	return until, e.message, !wall.Passed(until, now)
}

func (b *backoff) reset(key string) { delete(b.entries, key) }

func (b *backoff) forget(prefix string) {
	for k := range b.entries {
		if strings.HasPrefix(k, prefix) {
			delete(b.entries, k)
		}
	}
}
