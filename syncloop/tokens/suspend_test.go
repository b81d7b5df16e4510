package tokens

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/wall"
	"github.com/bowline-k8s/bowline/wall/walltest"
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
			t.Error("no update that the token is due")
		}
		mustToken(t, m, p, "vault", 7200, "token-2")
	})
}

// clocks has the readings of the machine's two clocks, and of the API server's.
type clocks struct{ now, server time.Time }

func (c *clocks) manager(t *testing.T) (*Manager, *issuer) {
	t.Helper()
	i := &issuer{now: func() time.Time { return c.server }}
	m := manager(t, i)
	m.now = func() time.Time { return c.now }
	return m, i
}

// pass lets d pass on every clock.
func (c *clocks) pass(d time.Duration) { c.now, c.server = c.now.Add(d), c.server.Add(d) }

// A machine may boot with a clock that is hours ahead, until NTP sets it back. A token is then due
// as if its clock had always been right.
func TestAClockThatIsSetBackDelaysNoRefresh(t *testing.T) {
	const ahead = 2 * time.Hour
	base := time.Now()
	c := &clocks{base, base.Add(-ahead).Round(0)}
	m, i := c.manager(t)
	p := testPod("1")
	mustToken(t, m, p, "", 3600, "token-1")
	c.now = walltest.Slept(c.now, -ahead)
	c.pass(47 * time.Minute)
	mustToken(t, m, p, "", 3600, "token-1")
	c.pass(time.Minute)
	mustToken(t, m, p, "", 3600, "token-2")

	// The pause after a failure, and the life of the token, as well.
	i.fail(errors.New("away"))
	c.pass(48 * time.Minute)
	mustToken(t, m, p, "", 3600, "token-2")
	c.now = walltest.Slept(c.now, -ahead)
	asked := i.count()
	c.pass(retryAfter)
	mustToken(t, m, p, "", 3600, "token-2")
	if i.count() != asked+1 {
		t.Error("the clock that was set back delayed the retry")
	}
	c.pass(12 * time.Minute)
	_, err := m.Token(t.Context(), p, "", 3600)
	var e *Error
	if !errors.As(err, &e) || !e.Expired {
		t.Errorf("err = %v for a token that expired", err)
	}
}

// The updates, which wake the pods, follow the same clocks.
func TestAClockThatIsSetBackDelaysNoUpdate(t *testing.T) {
	base := time.Now()
	c := &clocks{base, base.Round(0)}
	m, _ := c.manager(t)
	p := testPod("1")
	mustToken(t, m, p, "", 3600, "token-1")
	c.now = walltest.Slept(c.now, -2*time.Hour)
	if _, _, wait, _ := m.next(); wait <= 0 || wait > wall.Glance {
		t.Errorf("waits %v", wait)
	}
	c.pass(48 * time.Minute)
	stop := testutil.Go(t.Context(), m.Run)
	select {
	case uid := <-m.Updates():
		if uid != p.UID {
			t.Errorf("woke %s", uid)
		}
	case <-time.After(10 * time.Second):
		t.Error("no update")
	}
	testutil.Must(t, stop())
}

// A suspend and a clock that is set back right afterwards hide the time that passed from both
// clocks. The API's expiry shows it.
func TestASuspendWithAClockThatIsSetBack(t *testing.T) {
	const ahead, slept = 2 * time.Hour, 150 * time.Minute
	base := time.Now()
	c := &clocks{base, base.Add(-ahead).Round(0)}
	m, _ := c.manager(t)
	p := testPod("1")
	mustToken(t, m, p, "", 3600, "token-1")
	c.now, c.server = walltest.Slept(c.now, slept-ahead), c.server.Add(slept)
	mustToken(t, m, p, "", 3600, "token-2")
}

// By a clock that stays ahead of the API server's, every token has expired when it comes. It is
// then requested again after a rest, not at every call.
func TestAClockThatStaysAhead(t *testing.T) {
	base := time.Now()
	c := &clocks{base, base.Add(-5 * time.Hour).Round(0)}
	m, i := c.manager(t)
	p := testPod("1")
	for range 60 {
		if _, err := m.Token(t.Context(), p, "", 3600); err != nil {
			t.Fatal(err)
		}
		c.pass(time.Minute)
	}
	if n := i.count(); n > int(time.Hour/rest) {
		t.Errorf("%d requests in an hour", n)
	}
	// A token that cannot be refreshed stays in use: only the clock says that it has expired.
	i.fail(errors.New("away"))
	c.pass(rest)
	if _, err := m.Token(t.Context(), p, "", 3600); err != nil {
		t.Error(err)
	}
}

// By a clock that stays behind, the API's expiry lies far ahead, and must not delay a refresh.
func TestAClockThatStaysBehind(t *testing.T) {
	base := time.Now()
	c := &clocks{base, base.Add(5 * time.Hour).Round(0)}
	m, _ := c.manager(t)
	p := testPod("1")
	mustToken(t, m, p, "", 3600, "token-1")
	c.pass(47 * time.Minute)
	mustToken(t, m, p, "", 3600, "token-1")
	c.pass(time.Minute)
	mustToken(t, m, p, "", 3600, "token-2")
}

// The times that decide about a token have both clocks. Without a monotonic reading, a clock that
// is set back by two hours would delay a refresh by two hours; the wall clock is in every time.
func TestTokensExpireByEitherClock(t *testing.T) {
	m, err := New(Config{Client: &issuer{}})
	testutil.Must(t, err)
	if now := m.now(); now == now.Round(0) {
		t.Errorf("%v has no monotonic reading", now)
	}
}

// An API server that names no expiry changes nothing: a suspend counts by our own clocks.
func TestASuspendWithoutTheAPIsExpiry(t *testing.T) {
	base := time.Now()
	d := due{at: base.Add(time.Hour)}
	for left, now := range map[time.Duration]time.Time{
		30 * time.Second: walltest.Slept(base, time.Hour-30*time.Second),
		0:                walltest.Slept(base, time.Hour),
	} {
		if d.passed(now) != (left == 0) || d.wait(now).Round(time.Second) != left {
			t.Errorf("%v before: passed %t, wait %v", left, d.passed(now), d.wait(now))
		}
	}
}
