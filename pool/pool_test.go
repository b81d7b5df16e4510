package pool

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// at is a host without claims of others; labels make a different configuration of the same name.
func at(name string, labels ...string) *config.Host {
	h := &config.Host{Name: name, NodeName: name, Endpoint: "ssh://root@" + name + "/run/containerd.sock"}
	for _, l := range labels {
		if h.Labels == nil {
			h.Labels = map[string]string{}
		}
		h.Labels[l] = "x"
	}
	return h
}

func of(hosts ...*config.Host) map[string]*config.Host {
	m := map[string]*config.Host{}
	for _, h := range hosts {
		m[h.Name] = h
	}
	return m
}

// exactly removes the random part from a pool's pauses.
func exactly(p *Pool) *Pool {
	p.chance = func() float64 { return 0 }
	return p
}

// forever manages until it is cancelled.
func forever(ctx context.Context, _ *config.Host) error {
	<-ctx.Done()
	return ctx.Err()
}

// running runs a pool during a test, inside its synctest bubble.
func running(t *testing.T, p *Pool) (end func()) {
	stop := testutil.Go(t.Context(), p.Run)
	return func() {
		if err := stop(); err != nil {
			t.Errorf("asked to stop, it says %v", err)
		}
		if s := p.States(); len(s) != 0 {
			t.Errorf("after its end there are %v", s)
		}
	}
}

// TestOneHostFails: a host that fails is tried again with growing pauses, and the other one is not
// affected.
func TestOneHostFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var tries []time.Duration
		managed := 0
		began := time.Now()
		p := exactly(New(func(ctx context.Context, h *config.Host) error {
			mu.Lock()
			defer mu.Unlock()
			if h.Name == "bad" {
				tries = append(tries, time.Since(began))
				return errors.New("no runtime")
			}
			managed++
			mu.Unlock()
			defer mu.Lock()
			return forever(ctx, h)
		}, Options{EndWhenAllFail: true}))
		p.Set(of(at("bad"), at("good")))
		end := running(t, p)
		time.Sleep(4*time.Minute + time.Millisecond)
		s := p.States()
		if g := s["good"]; g.Phase != Managed || g.Err != nil || g.Since.Sub(began) != turnTime {
			t.Errorf("the good host is %+v", g)
		}
		if b := s["bad"]; b.Phase != Failed || b.Err.Error() != "no runtime" || b.NextTry.Sub(began) != 255*time.Second || b.FailedAt != b.Since {
			t.Errorf("the bad host is %+v", b)
		}
		end()
		if managed != 1 {
			t.Errorf("the good host was started %d times", managed)
		}
		want := []time.Duration{0, 5, 15, 35, 75, 135, 195}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(tries, want) {
			t.Errorf("the bad host was tried at %v, want %v", tries, want)
		}
	})
}

// TestPauses: a long run resets the pause, a short one does not.
func TestPauses(t *testing.T) {
	for _, c := range []struct {
		runs time.Duration
		want string
	}{
		{runs: 2 * time.Minute, want: "5s 5s 5s 5s 5s"},
		{runs: time.Minute, want: "5s 10s 20s 40s 1m0s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var ended time.Time
			var pauses []string
			p := exactly(New(func(ctx context.Context, _ *config.Host) error {
				if !ended.IsZero() {
					pauses = append(pauses, time.Since(ended).String())
				}
				time.Sleep(c.runs)
				ended = time.Now()
				return nil
			}, Options{}))
			p.Set(of(at("a")))
			end := running(t, p)
			time.Sleep(5*c.runs + 3*time.Minute)
			if s := p.States()["a"]; s.Err == nil || s.Err.Error() != "it ended by itself" {
				t.Errorf("it is %+v", s)
			}
			end()
			if got := strings.Join(pauses[:5], " "); got != c.want {
				t.Errorf("it ran for %s, and was tried again after %s, want %s", c.runs, got, c.want)
			}
		})
	}
}

// TestTogetherOnlyOnce: two hundred hosts that fail together return one by one, none later than the
// full pause, and not all at the same time.
func TestTogetherOnlyOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 200
		var mu sync.Mutex
		tries := map[string][]time.Time{}
		p := New(func(_ context.Context, h *config.Host) error {
			mu.Lock()
			defer mu.Unlock()
			tries[h.Name] = append(tries[h.Name], time.Now())
			return errors.New("no")
		}, Options{})
		hosts := map[string]*config.Host{}
		for i := range n {
			h := at(fmt.Sprintf("h%03d", i))
			hosts[h.Name] = h
		}
		p.Set(hosts)
		end := running(t, p)
		time.Sleep(5 * time.Minute)
		end()
		seen := map[time.Time]bool{}
		for name, at := range tries {
			if len(at) < 7 {
				t.Errorf("%s was tried %d times in five minutes", name, len(at))
			}
			for i, now := range at {
				if seen[now] {
					t.Fatalf("two began at %s", now)
				}
				seen[now] = true
				if i == 0 {
					continue
				}
				pause := min(retryFirst<<(i-1), retryLast)
				if waited := now.Sub(at[i-1]); waited < pause*3/4 || waited > pause+n*turnTime {
					t.Errorf("%s waited for %s before try %d, want about %s", name, waited, i, pause)
				}
			}
		}
	})
}

// TestHangingDelaysNothingElse: drivers that hang in their start or end do not block others.
func TestHangingDelaysNothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		p := New(func(ctx context.Context, h *config.Host) error {
			if strings.HasPrefix(h.Name, "dead") {
				<-release // whatever ctx says
				return nil
			}
			return forever(ctx, h)
		}, Options{})
		hosts := of(at("late"))
		for i := range 100 {
			h := at(fmt.Sprintf("dead%d", i))
			hosts[h.Name] = h
		}
		p.Set(hosts)
		end := running(t, p)
		time.Sleep(101 * turnTime)
		if s := p.States()["late"]; s.Phase != Managed {
			t.Errorf("behind a hundred that hang it is %+v", s)
		}
		// All are removed, one is changed, and another one is added.
		p.Set(of(at("late"), at("new"), at("dead0", "changed")))
		time.Sleep(turnTime)
		s := p.States()
		if s["new"].Phase != Managed || s["late"].Phase != Managed || s["late"].Since.After(s["new"].Since) {
			t.Errorf("beside a hundred that do not end: new %+v, late %+v", s["new"], s["late"])
		}
		if s["dead0"].Phase != Ending || s["dead1"].Phase != Ending {
			t.Errorf("those that do not end are %+v, %+v", s["dead0"], s["dead1"])
		}
		close(release)
		time.Sleep(turnTime)
		if s := p.States(); s["dead0"].Phase == Ending || len(s) != 3 {
			t.Errorf("when they have ended there are %v", s)
		}
		end()
	})
}

// TestOneMachineOneDriver: a renamed machine, and a port that another host takes, are passed on
// when the old driver has ended, and not before.
func TestOneMachineOneDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const leaving = 3 * time.Second
		p := New(func(ctx context.Context, h *config.Host) error {
			<-ctx.Done()
			time.Sleep(leaving)
			return nil
		}, Options{})
		before, after := at("before"), at("after")
		after.Endpoint, after.NodeName = before.Endpoint, "other"
		a, b := at("a"), at("b")
		a.Server = config.Server{Address: "0.0.0.0", Port: 10250}
		p.Set(of(before, a, b))
		end := running(t, p)
		time.Sleep(time.Second)
		withPort := *b
		withPort.Server = a.Server
		a2 := at("a")
		p.Set(of(after, a2, &withPort))
		changed := time.Now()
		time.Sleep(leaving - time.Millisecond)
		s := p.States()
		if w := s["after"].BlockedBy; s["after"].Phase != Waiting || w != "host before still uses the endpoint "+before.Endpoint {
			t.Errorf("while its machine belongs to another it is %+v", s["after"])
		}
		for name, phase := range map[string]Phase{"before": Ending, "a": Ending, "b": Ending} {
			if s[name].Phase != phase {
				t.Errorf("%s is %+v, want %s", name, s[name], phase)
			}
		}
		time.Sleep(time.Second)
		s = p.States()
		for _, name := range []string{"after", "a", "b"} {
			if got := s[name]; got.Phase != Managed || got.BlockedBy != "" || got.Since.Before(changed.Add(leaving)) {
				t.Errorf("then %s is %+v", name, got)
			}
		}
		end()
	})
}

// TestAllHostsFail: when no host is left, Run ends with the error of each.
func TestAllHostsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		p := exactly(New(func(_ context.Context, h *config.Host) error {
			if h.Name == "good" {
				time.Sleep(7 * time.Second)
			}
			return errors.New("no " + h.Name + " runtime")
		}, Options{EndWhenAllFail: true}))
		p.Set(of(at("good"), at("bad")))
		var log bytes.Buffer
		ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&log))))
		err := p.Run(ctx)
		// The failure that ends Run is not logged as well.
		if n := strings.Count(log.String(), "Failed to manage the host"); n != 2 || strings.Contains(log.String(), `"good"`) {
			t.Errorf("the log tells of %d failures: %s", n, log.String())
		}
		if want := "host bad: no bad runtime\nhost good: no good runtime"; err == nil || err.Error() != want {
			t.Errorf("the end is %v, want %s", err, want)
		}
		if took := time.Since(began); took != 7*time.Second+turnTime {
			t.Errorf("it took %v", took)
		}
	})
}

// TestAllHostsFailAndMayComeBack: without EndWhenAllFail the same pool does not end.
func TestAllHostsFailAndMayComeBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(func(context.Context, *config.Host) error { return errors.New("no") }, Options{})
		p.Set(of(at("a")))
		end := running(t, p)
		time.Sleep(time.Hour)
		if s := p.States()["a"]; s.Phase != Failed {
			t.Errorf("it is %+v", s)
		}
		end()
	})
}

// TestNotTheEndYet: a failed host does not end Run if another one is about to be managed, because it
// was just added or changed.
func TestNotTheEndYet(t *testing.T) {
	for name, then := range map[string]map[string]*config.Host{
		"another one comes": of(at("bad"), at("good")),
		"it is changed":     of(at("bad", "fixed")),
		"it goes":           of(at("good")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var p *Pool
				p = exactly(New(func(ctx context.Context, h *config.Host) error {
					if h.Name == "good" || h.Labels != nil {
						return forever(ctx, h)
					}
					time.Sleep(time.Second)
					p.Set(then) // at the moment of its failure
					return errors.New("no")
				}, Options{EndWhenAllFail: true}))
				p.Set(of(at("bad")))
				end := running(t, p)
				time.Sleep(2 * time.Second)
				if len(p.States()) != len(then) {
					t.Errorf("there are %v", p.States())
				}
				end()
			})
		})
	}
}

// TestFailedAndChanged: a Failed host that is changed is tried at once; one that is not wanted is
// forgotten.
func TestFailedAndChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := exactly(New(func(ctx context.Context, h *config.Host) error {
			if h.Labels != nil {
				return forever(ctx, h)
			}
			return errors.New("no")
		}, Options{}))
		p.Set(of(at("a"), at("b")))
		end := running(t, p)
		time.Sleep(time.Second)
		changed := p.Changed()
		p.Set(of(at("a", "fixed")))
		synctest.Wait()
		select {
		case <-changed:
		default:
			t.Error("no one was notified")
		}
		if s := p.States(); len(s) != 1 || s["a"].Phase != Managed || s["a"].Err != nil {
			t.Errorf("there are %+v", s)
		}
		changed = p.Changed()
		p.Set(of(at("a", "fixed")))
		time.Sleep(time.Minute)
		select {
		case <-changed:
			t.Error("it learned of nothing")
		default:
		}
		end()
	})
}
