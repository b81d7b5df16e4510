package tokens

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// While the machine sleeps, timers stand still and the wall clock continues. A token that fell due
// meanwhile is renewed within a minute after the wake-up.
func TestATokenThatFallsDueWhileTheMachineSleeps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		m := manager(t, i)
		var slept atomic.Int64
		m.now = func() time.Time { return time.Now().Round(0).Add(time.Duration(slept.Load())) }
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = m.Run(ctx) }()
		p := testPod("1")
		mustToken(t, m, p, "vault", 7200, "token-1")
		synctest.Wait()
		slept.Store(int64(2 * time.Hour))
		select {
		case uid := <-m.Updates():
			if uid != p.UID {
				t.Errorf("woke %s", uid)
			}
		case <-time.After(time.Minute + time.Second):
			t.Error("nothing told that the token is due")
		}
		mustToken(t, m, p, "vault", 7200, "token-2")
	})
}

// The times that decide about a token carry no monotonic reading, which stands still while the
// machine sleeps.
func TestTokensExpireByWallTime(t *testing.T) {
	m, err := New(Config{Client: &issuer{}})
	testutil.Must(t, err)
	if now := m.now(); now != now.Round(0) {
		t.Errorf("%v has a monotonic reading", now)
	}
}
