package images

import (
	"maps"
	"strings"
	"time"

	"k8s.io/client-go/util/flowcontrol"

	"github.com/bowline-k8s/bowline/wall"
)

// backoff is the kubelet's back-off of image pulls with the last failure of each key. Like every
// pause here, it is over by either clock (wall.Passed); flowcontrol's IsInBackOff methods know only
// one. The Manager's mutex guards it.
type backoff struct {
	*flowcontrol.Backoff
	last map[string]failure
}

type failure struct {
	until   time.Time // the end of its back-off
	message string
}

func newBackoff(base, max time.Duration) backoff {
	b := flowcontrol.NewBackOff(base, max)
	b.HasExpiredFunc = func(now, last time.Time, max time.Duration) bool { return wall.Passed(last.Add(2*max), now) }
	return backoff{Backoff: b, last: map[string]failure{}}
}

// fail counts a failure and returns until when to wait.
func (b *backoff) fail(key, message string, now time.Time) time.Time {
	b.GC()
	maps.DeleteFunc(b.last, func(k string, _ failure) bool { return b.Get(k) == 0 })
	b.Next(key, now)
	until := now.Add(b.Get(key))
	b.last[key] = failure{until: until, message: message}
	return until
}

// state reports whether key is in back-off, until when, and for which failure.
func (b *backoff) state(key string, now time.Time) (until time.Time, message string, waiting bool) {
	f := b.last[key]
	return f.until, f.message, !wall.Passed(f.until, now)
}

// forget drops the back-offs of all keys that begin with prefix.
func (b *backoff) forget(prefix string) {
	for key := range b.last {
		if strings.HasPrefix(key, prefix) {
			b.reset(key)
		}
	}
}

func (b *backoff) reset(key string) {
	b.Reset(key)
	delete(b.last, key)
}
