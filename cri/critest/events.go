package critest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func testEvents(s *suite, t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	events, err := s.Client.Events(ctx)
	if s.NoEvents {
		if !errors.Is(err, cri.ErrNoEvents) {
			t.Errorf("error %v, want ErrNoEvents", err)
		}
		return
	}
	testutil.Must(t, err)
	// A subscription takes effect some time after the call: create sandboxes until the first event
	// arrives.
	first := false
	for deadline := time.Now().Add(patience); !first; {
		s.runSandbox(t, s.sandboxConfig(t))
		select {
		case _, first = <-events:
		case <-time.After(time.Second):
		}
		if time.Now().After(deadline) {
			t.Fatal("no event at all")
		}
	}
	sandbox := s.sandboxConfig(t)
	sandboxID := s.runSandbox(t, sandbox)
	id := s.create(t, sandboxID, sandbox, s.script("c", "wait"))
	next := func(want cri.EventType, of string) {
		t.Helper()
		timeout := time.After(patience)
		for {
			select {
			case e, ok := <-events:
				if !ok {
					t.Fatalf("the stream ended before %v", want)
				}
				if e.ContainerID != of {
					continue
				}
				if e.Type != want {
					t.Fatalf("event %v, want %v", e.Type, want)
				}
				return
			case <-timeout:
				t.Fatalf("no event %v", want)
			}
		}
	}
	next(cri.EventStarted, sandboxID)
	testutil.Must(t, s.Client.StartContainer(ctx, id))
	next(cri.EventStarted, id)
	// The end of an exec in the container gives no event.
	if _, err := s.Client.ExecSync(ctx, id, []string{"/bowline-test", "exit 1"}, patience); err != nil {
		t.Fatal(err)
	}
	testutil.Must(t, s.Client.StopContainer(ctx, id, 0))
	next(cri.EventExited, id)
	if !s.CRIEvents {
		next(cri.EventDeleted, id) // of its task
	}
	testutil.Must(t, s.Client.RemoveContainer(ctx, id))
	next(cri.EventDeleted, id)
	cancel()
	for range events { // ends after cancel
	}
}
