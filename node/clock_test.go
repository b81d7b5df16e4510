package node

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/notify"
)

func TestClockIsMeasuredAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var asked int
		var offset time.Duration
		var fails error
		link := make(chan struct{})
		set := func(by time.Duration, err error) {
			mu.Lock()
			defer mu.Unlock()
			offset, fails = by, err
		}
		c := clock{
			ask: func(context.Context) (time.Duration, time.Duration, error) {
				mu.Lock()
				defer mu.Unlock()
				asked++
				return offset, 0, fails
			},
			changed: func() <-chan struct{} {
				mu.Lock()
				defer mu.Unlock()
				return link
			},
			doubt: notify.New(), offset: &atomic.Int64{},
		}
		go func() { _ = c.watch(t.Context()) }()
		expect := func(what string, times int, by time.Duration) {
			t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			if asked != times || c.Offset() != by {
				t.Fatalf("%s: asked %d times, offset %s; want %d and %s", what, asked, c.Offset(), times, by)
			}
		}
		expect("at first", 1, 0)
		set(4*time.Minute, nil)
		time.Sleep(time.Minute)
		expect("nothing reported the change", 1, 0)
		c.doubt.Send()
		expect("a time was reported that cannot be", 2, 4*time.Minute)
		set(time.Hour, nil)
		time.Sleep(time.Second)
		c.doubt.Send()
		expect("doubt once more, a second later", 2, 4*time.Minute)
		time.Sleep(clockRetry)
		expect("ten seconds later", 3, time.Hour)
		set(0, errors.New("the link is down"))
		mu.Lock()
		close(link)
		link = make(chan struct{})
		mu.Unlock()
		expect("the link went", 4, time.Hour)
		set(time.Second, nil)
		time.Sleep(clockRetry)
		expect("will retry", 5, time.Second)
		time.Sleep(clockPeriod)
		expect("in its time", 6, time.Second)
	})
}
