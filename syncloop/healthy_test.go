package syncloop

import (
	"testing"
	"time"
)

// TestHealthOfALoop: only a loop that runs can be stuck. While a node adopts what runs on its host, the
// loop does not run yet, for as long as the host takes.
func TestHealthOfALoop(t *testing.T) {
	var l Loop
	if err := l.Healthy(); err != nil {
		t.Errorf("before it runs: %v", err)
	}
	old := time.Now().Add(-3 * time.Minute)
	if l.turned.Store(&old); l.Healthy() == nil {
		t.Error("a loop that has not iterated for three minutes is healthy")
	}
}
