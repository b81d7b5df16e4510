package provider

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestReportsAfterOutage: when the lease can be renewed again, the status is reported at once and
// for a minute, whatever the node's watch shows, and then no more.
func TestReportsAfterOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		s := newNodeStatus(Config{RepairInterval: 10 * time.Second, OnReconnect: func() { calls++ }})
		log := renewalLog()
		log.again = s.again.Send
		ctx, cancel := context.WithCancel(t.Context())
		var sent []time.Duration
		began := time.Now()
		s.NotifyNodeStatus(ctx, func(*v1.Node) { sent = append(sent, time.Since(began)) })

		log.note(ctx, errors.New("connection refused"))
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(sent) != 0 {
			t.Errorf("%d reports while the server was away", len(sent))
		}
		log.note(ctx, nil)
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if len(sent) != reportsAfterOutage || sent[0] != time.Minute || sent[len(sent)-1] != 2*time.Minute {
			t.Errorf("reports at %v", sent)
		}
		if calls != reportsAfterOutage {
			t.Errorf("called after the server's return %d times", calls)
		}
		cancel()
		s.senders.Wait()
	})
}
