package readiness

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/provider"
)

// script calls a State as a Reporter does, and notes each change of Ready.
type script struct {
	State
	began, now time.Time
	down       time.Time // since when the link is down
	shown      []string
}

func (w *script) show() {
	r := w.Ready()
	text := fmt.Sprint(w.now.Sub(w.began), " ", r.Reason, r.Message)
	if r.OK {
		text = fmt.Sprint(w.now.Sub(w.began), " ready")
	}
	w.shown = append(w.shown, text)
}

func (w *script) reports(ok bool, message string) {
	w.runtime(w.now, Status{ok, "", message})
	w.show()
}

func (w *script) look() {
	l := Link{Up: w.down.IsZero(), Address: "box", Message: "gone", Over: w.down.Add(40 * time.Second)}
	w.link(w.now, l)
	w.show()
}

func (w *script) linkGoes()  { w.down = w.now; w.look() }
func (w *script) linkComes() { w.down = time.Time{}; w.look() }

func (w *script) wait(d time.Duration) {
	end := w.now.Add(d)
	for next := w.next(w.now); !next.IsZero() && !next.After(end); next = w.next(w.now) {
		w.now = next
		w.look()
	}
	w.now = end
}

// A runtime that cannot be reached is not necessarily down.
func TestReadiness(t *testing.T) {
	for _, tc := range []struct {
		name  string
		local bool
		steps func(w *script)
		want  []string
	}{
		{"a local runtime is believed at once", true, func(w *script) {
			w.reports(true, "")
			w.reports(false, "down")
		}, []string{"0s ready", "0s down"}},
		{"a remote one when the link has not gone either", false, func(w *script) {
			w.reports(true, "")
			w.reports(false, "down")
			w.wait(time.Hour)
		}, []string{"0s ready", "0s ready", "12s down"}},
		{"it is back before that", false, func(w *script) {
			w.reports(true, "")
			w.reports(false, "down")
			w.wait(5 * time.Second)
			w.reports(true, "")
			w.wait(time.Hour)
		}, []string{"0s ready", "0s ready", "5s ready"}},
		{"the link goes, and comes back in time", false, func(w *script) {
			w.reports(true, "")
			w.reports(false, "no answer")
			w.wait(9 * time.Second)
			w.linkGoes()
			w.reports(false, "no answer still")
			w.wait(20 * time.Second)
			w.linkComes()
			w.reports(true, "")
			w.wait(time.Hour)
		}, []string{"0s ready", "0s ready", "9s ready", "9s ready", "29s ready", "29s ready"}},
		{"the link stays away", false, func(w *script) {
			w.reports(true, "")
			w.linkGoes()
			w.wait(40 * time.Second)
			w.reports(false, "no answer")
			w.wait(time.Minute)
			w.linkComes()
			w.wait(time.Second)
			w.reports(true, "")
		}, []string{"0s ready", "0s ready", "40s LinkDowngone", "40s LinkDowngone", "1m40s LinkDowngone", "1m41s ready"}},
		{"the runtime answers before the link is known to be back", false, func(w *script) {
			w.reports(true, "")
			w.linkGoes()
			w.wait(time.Minute)
			w.reports(true, "")
			w.linkComes()
		}, []string{"0s ready", "0s ready", "40s LinkDowngone", "1m0s ready", "1m0s ready"}},
		{"the runtime did not survive the link", false, func(w *script) {
			w.reports(true, "")
			w.linkGoes()
			w.reports(false, "no answer")
			w.wait(20 * time.Second)
			w.linkComes()
			w.reports(false, "refused")
			w.wait(time.Minute)
		}, []string{"0s ready", "0s ready", "0s ready", "20s ready", "20s ready", "32s refused"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := &script{began: time.Now()}
			w.now = w.began
			if !tc.local {
				w.link(w.now, Link{Up: true})
			}
			tc.steps(w)
			if diff := cmp.Diff(tc.want, w.shown); diff != "" {
				t.Errorf("want - and got +:\n%s", diff)
			}
		})
	}
}

// A host that shuts down is not Ready, whatever else is reported. If it does not shut down, the
// reported status is shown.
func TestShuttingDown(t *testing.T) {
	for _, c := range []struct {
		state State
		want  Status
	}{
		{State{}, Status{Message: "the container runtime has not reported its status yet"}},
		{State{Runtime: Status{OK: true}}, Status{OK: true}},
		{State{ShuttingDown: true}, Status{Message: "[the container runtime has not reported its status yet, node is shutting down]"}},
		{State{ShuttingDown: true, Runtime: Status{OK: true}}, Status{Message: "node is shutting down"}},
		{State{ShuttingDown: true, Runtime: Status{Message: "container runtime is down"}}, Status{Message: "[container runtime is down, node is shutting down]"}},
		{State{ShuttingDown: true, Runtime: Status{Reason: "LinkDown", Message: "no answer"}}, Status{Reason: "LinkDown", Message: "[no answer, node is shutting down]"}},
	} {
		if got := c.state.Ready(); got != c.want {
			t.Errorf("%+v: %+v, want %+v", c.state, got, c.want)
		}
	}
}

func TestNetwork(t *testing.T) {
	for _, c := range []struct {
		link *Link
		want string
	}{
		{nil, "[]"},
		{&Link{Up: true, Address: "box"}, "[{LinkUp True LinkUp ssh: connected to box} {NetworkUnavailable False LinkUp the host can be reached}]"},
		{&Link{Message: "gone"}, "[{LinkUp False LinkDown gone} {NetworkUnavailable True LinkDown gone}]"},
	} {
		if got := fmt.Sprint((&State{Link: c.link}).Network()); got != c.want {
			t.Errorf("%+v: %s, want %s", c.link, got, c.want)
		}
	}
}

type shown struct{ ready chan string }

func (s shown) SetReady(_ bool, _, message string) { s.ready <- message }
func (s shown) SetCondition(provider.Condition)    {}
func (s shown) RecordEvent(_, _, _ string)         {}

// TestReporter: each fact is written, and one that comes after Run has ended blocks no caller.
func TestReporter(t *testing.T) {
	node := shown{make(chan string)}
	r := New(node, nil, "", 0)
	stop := testutil.Go(t.Context(), r.Run)
	for _, c := range []struct {
		send func()
		want string
	}{
		{func() {}, "the container runtime has not reported its status yet"},
		{func() { r.Runtime(true, "", "fine") }, "fine"},
		{func() { r.ShuttingDown(true) }, "node is shutting down"},
		{func() { r.Runtime(false, "", "down") }, "[down, node is shutting down]"},
		{func() { r.ShuttingDown(false) }, "down"},
	} {
		c.send()
		if got := <-node.ready; got != c.want {
			t.Errorf("it shows %q, want %q", got, c.want)
		}
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	for range 20 {
		r.ShuttingDown(true)
	}
}

type counted struct {
	shown
	events map[string]int
}

func (c counted) RecordEvent(_, reason, _ string) { c.events[reason]++ }

// TestEventsOfAFlappingLink: a link that goes and comes each second for an hour has few events, and each
// LinkDown has its LinkUp.
func TestEventsOfAFlappingLink(t *testing.T) {
	node := counted{events: map[string]int{}}
	r, at := New(node, nil, "", 0), time.Now()
	up, down := Link{Up: true}, Link{}
	for range 3600 {
		at = at.Add(time.Second)
		r.recordLink(&up, down, at)
		r.recordLink(&down, up, at)
	}
	if n := node.events; n["LinkDown"] < 2 || n["LinkDown"] > 15 || n["LinkUp"] != n["LinkDown"] {
		t.Errorf("%v", n)
	}
}

// TestLinkEvents: a link that goes and comes has one event for each change, and a driver that starts
// with its link has none.
func TestLinkEvents(t *testing.T) {
	up, down := Link{Up: true, Address: "10.0.0.7:22"}, Link{Address: "10.0.0.7:22", Message: "no route to host"}
	for _, c := range []struct {
		before *Link
		now    Link
		want   *event
	}{
		{nil, up, nil},
		{nil, down, &event{v1.EventTypeWarning, "LinkDown", "no route to host"}},
		{&up, down, &event{v1.EventTypeWarning, "LinkDown", "no route to host"}},
		{&down, down, nil},
		{&down, up, &event{v1.EventTypeNormal, "LinkUp", "ssh: connected to 10.0.0.7:22 again"}},
		{&up, up, nil},
	} {
		got := linkEvent(c.before, c.now)
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("from %+v to %+v: %+v, want %+v", c.before, c.now, got, c.want)
		}
	}
}
