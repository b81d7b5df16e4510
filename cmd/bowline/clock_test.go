package main

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestClockIsMeasuredAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked int
		var offset time.Duration
		var fails error
		link := make(chan struct{})
		c := clock{
			ask: func(context.Context) (time.Duration, time.Duration, error) {
				asked++
				return offset, 0, fails
			},
			changed: func() <-chan struct{} { return link },
			doubt:   make(nudge, 1), offset: &atomic.Int64{},
		}
		go func() { _ = c.watch(t.Context()) }()
		expect := func(what string, times int, by time.Duration) {
			t.Helper()
			synctest.Wait()
			if asked != times || c.Offset() != by {
				t.Fatalf("%s: asked %d times, offset %s; want %d and %s", what, asked, c.Offset(), times, by)
			}
		}
		expect("at first", 1, 0)
		offset = 4 * time.Minute
		time.Sleep(time.Minute)
		expect("nothing told of the change", 1, 0)
		c.doubt.poke()
		expect("a time was told that cannot be", 2, 4*time.Minute)
		offset = time.Hour
		time.Sleep(time.Second)
		c.doubt.poke()
		expect("doubt once more, a second later", 2, 4*time.Minute)
		time.Sleep(clockRetry)
		expect("ten seconds later", 3, time.Hour)
		old := link
		link = make(chan struct{})
		fails = errors.New("the link is down")
		close(old)
		expect("the link went", 4, time.Hour)
		fails, offset = nil, time.Second
		time.Sleep(clockRetry)
		expect("tried again", 5, time.Second)
		time.Sleep(clockPeriod)
		expect("in its time", 6, time.Second)
	})
}
