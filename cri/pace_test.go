package cri

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestFloodOfEvents: however fast a runtime sends events, they are read at a bounded rate, whether
// they are hints or not; and a stream that waits ends with its context.
func TestFloodOfEvents(t *testing.T) {
	for name, c := range map[string]struct {
		size   int
		event  Event
		atMost int
	}{
		"large, no hints": {1 << 20, Event{}, 8 + 10 + 1},
		"small, no hints": {1, Event{}, (8<<20+10<<20)/512 + 1},
		"large hints":     {1 << 20, Event{Type: EventExited, ContainerID: "c"}, 8 + 10 + 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				read := 0
				client := &Client{}
				for range client.forward(ctx, cancel, func() (Event, int, error) {
					read++
					return c.event, c.size, nil
				}) {
				}
				client.streams.Wait()
				if read > c.atMost || read < c.atMost/2 {
					t.Errorf("%d events were read in 10 s, want about %d", read, c.atMost)
				}
			})
		})
	}
}

// TestStormOfEvents: what a node of 110 pods sends while all of them start is read at once.
func TestStormOfEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		left, began := 110*6, time.Now()
		client := &Client{}
		seen := 0
		for range client.forward(t.Context(), func() {}, func() (Event, int, error) {
			if left--; left < 0 {
				return Event{}, 0, errors.New("the end")
			}
			return Event{Type: EventStarted, ContainerID: "c"}, 10 << 10, nil
		}) {
			seen++
		}
		if took := time.Since(began); seen != 110*6 || took > time.Second {
			t.Errorf("%d events took %v", seen, took)
		}
	})
}
