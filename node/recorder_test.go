package node

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

type sunk struct{ at []time.Time }

func (s *sunk) Create(e *v1.Event) (*v1.Event, error) {
	s.at = append(s.at, time.Now())
	return e, nil
}
func (s *sunk) Update(e *v1.Event) (*v1.Event, error)          { return s.Create(e) }
func (s *sunk) Patch(e *v1.Event, _ []byte) (*v1.Event, error) { return s.Create(e) }

func TestEventsYieldToStartsForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := make(chan struct{})
		to := &sunk{}
		met := make(chan struct{})
		close(met)
		s := &patientSink{met: met, EventSink: to, ctx: t.Context(), quiet: func() <-chan struct{} { return busy }}
		began := time.Now()
		event := func() *v1.Event { return &v1.Event{LastTimestamp: metav1.NewTime(began)} }

		// Events that happened together wait together, not one after the other.
		for range 3 {
			_, _ = s.Create(event())
		}
		_, _ = s.Patch(event(), nil)
		for i, at := range to.at {
			if waited := at.Sub(began); waited != eventPatience {
				t.Errorf("event %d went after %s", i, waited)
			}
		}

		began = time.Now()
		time.AfterFunc(time.Second, func() { close(busy) })
		to.at = nil
		_, _ = s.Create(event())
		if waited := to.at[0].Sub(began); waited != time.Second {
			t.Errorf("the event went %s after it happened, the machine was quiet after 1s", waited)
		}
	})
}

// No event goes to an API server that was not met: it may belong to another cluster.
func TestEventsGoToNoStranger(t *testing.T) {
	to := &sunk{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := &patientSink{met: make(chan struct{}), EventSink: to, ctx: ctx, quiet: func() <-chan struct{} { return nil }}
	old := &v1.Event{LastTimestamp: metav1.NewTime(time.Now().Add(-time.Hour))}
	_, _ = s.Create(old)
	_, _ = s.Patch(old, nil)
	if len(to.at) != 0 {
		t.Errorf("%d events were sent", len(to.at))
	}
	// The last events of a stopping process are sent all the same.
	met := make(chan struct{})
	close(met)
	s.met = met
	for range 20 {
		_, _ = s.Create(old)
	}
	if len(to.at) != 20 {
		t.Errorf("%d of 20 events were sent", len(to.at))
	}
}

// reasons is a sink that counts events by their reason.
type reasons struct {
	mu    sync.Mutex
	count map[string]int
}

func (s *reasons) Create(e *v1.Event) (*v1.Event, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count[e.Reason]++
	return e, nil
}
func (s *reasons) Update(e *v1.Event) (*v1.Event, error)          { return s.Create(e) }
func (s *reasons) Patch(e *v1.Event, _ []byte) (*v1.Event, error) { return s.Create(e) }

// TestEventsOfANodeDoNotHideOthers: one that comes all the time is bounded, and the others are written. A pod's
// share one bound, as with a kubelet.
func TestEventsOfANodeDoNotHideOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, r := newRecorder("box")
		to := &reasons{count: map[string]int{}}
		b.StartRecordingToSink(to)
		defer b.Shutdown()
		for kind, late := range map[string]string{"Node": "NodeNotReady", "Pod": "BackOff"} {
			about := &v1.ObjectReference{APIVersion: "v1", Kind: kind, Name: "box"}
			for i := range 100 {
				r.Event(about, v1.EventTypeWarning, "Noise"+kind, strconv.Itoa(i))
				synctest.Wait()
			}
			r.Event(about, v1.EventTypeWarning, late, "")
			synctest.Wait()
		}
		if n := to.count; n["NoiseNode"] < 5 || n["NoiseNode"] > 30 || n["NodeNotReady"] != 1 || n["BackOff"] != 0 {
			t.Errorf("%v", n)
		}
	})
}
