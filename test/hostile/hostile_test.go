package hostile

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

const (
	mostMemory = 64 << 20         // more than without the hostile host
	mostRatio  = 1.1              // of the medians of start times
	baseline   = 60               // starts before the first lie
	settling   = 10               // starts after a lie that are not counted
	calmStarts = 20               // starts between two lies
	keptUp     = 30 * time.Second // each lie lasts at least that long
)

// TestOneHostLies checks the rules of the package comment with a lying runtime.
func TestOneHostLies(t *testing.T) {
	r := need(t)
	stamp, err := r.stamp(t.Context())
	testutil.Must(t, err)
	last := 0 // the last lie that ends in a quarantine
	for i, l := range lies {
		if l.want != nil {
			last = i
		}
	}
	var rounds []round
	for i, l := range lies {
		rounds = append(rounds, round{l.name, func() { r.playLie(t, l, stamp) }, func() { r.stopLying(t, l, i == last) }})
	}
	r.whilePodsStart(t, rounds)
	r.counted(t)
}

// TestOneHostsShellsLie checks the same with a lying sshd.
func TestOneHostsShellsLie(t *testing.T) {
	r := need(t)
	var rounds []round
	for _, l := range shellLies {
		rounds = append(rounds, round{l.name, func() { r.shellsLie(t, l) }, func() { r.trueShells(t, l) }})
	}
	r.whilePodsStart(t, rounds)
	r.counted(t)
}

func need(t *testing.T) *rig {
	t.Helper()
	if os.Getenv("BOWLINE_E2E") != "1" {
		t.Skip("needs root and the lab: BOWLINE_E2E=1 runs it")
	}
	hosts := 20
	if text := os.Getenv("BOWLINE_HOSTILE_HOSTS"); text != "" {
		var err error
		if hosts, err = strconv.Atoi(text); err != nil || hosts < 1 {
			t.Fatalf("BOWLINE_HOSTILE_HOSTS=%q: a number, at least 1", text)
		}
	}
	return start(t, hosts)
}

// round is one lie, and what makes the host behave again.
type round struct {
	name      string
	lie, stop func()
}

// whilePodsStart tells each lie while pods start on the good hosts, and lets pods start without it
// before and after each. It compares memory, and the medians of the start times. The two kinds of
// rounds alternate, so that what else the machine does counts for both. Starts do not count while
// the host becomes an ordinary one again, and just after: that costs what any host costs that is
// added.
func (r *rig) whilePodsStart(t *testing.T, rounds []round) {
	t.Helper()
	without := r.alone(t)
	before := r.lives(t)
	testutil.Must(t, r.forget())
	calm, err := r.churn(t.Context(), func(n int) bool { return n >= calmStarts })
	testutil.Must(t, err)
	var took []time.Duration
	for _, round := range rounds {
		during, err := r.during(t.Context(), round.lie)
		testutil.Must(t, err)
		round.stop()
		_, err = r.churn(t.Context(), func(n int) bool { return n >= settling })
		testutil.Must(t, err)
		after, err := r.churn(t.Context(), func(n int) bool { return n >= calmStarts })
		testutil.Must(t, err)
		t.Logf("%s: median start %s (%d starts), after it %s", round.name, median(during), len(during), median(after))
		took, calm = append(took, during...), append(calm, after...)
	}
	with, err := r.peak()
	testutil.Must(t, err)
	slices.Sort(took)
	slices.Sort(calm)
	ratio := float64(median(took)) / float64(median(calm))
	t.Logf("%d good hosts and one that lies: peak memory %d MiB, without lies %d MiB; median start %s (%d starts), without lies %s (%d starts): %.2f times; load %s",
		len(r.good), with>>20, without>>20, median(took), len(took), median(calm), len(calm), ratio, labtest.Load())
	if with > without+mostMemory {
		t.Errorf("the hostile host costs %d MiB", (with-without)>>20)
	}
	if ratio > mostRatio {
		t.Errorf("pods on the others take %.2f times as long to start", ratio)
	}
	r.untouched(t, before)
}

// during returns the start times of the pods that start while lie runs.
func (r *rig) during(ctx context.Context, lie func()) ([]time.Duration, error) {
	over := make(chan struct{})
	var took []time.Duration
	var failed error
	var starts sync.WaitGroup
	starts.Go(func() {
		took, failed = r.churn(ctx, func(int) bool {
			select {
			case <-over:
				return true
			default:
				return false
			}
		})
	})
	lie()
	close(over)
	starts.Wait()
	return took, failed
}

func median(sorted []time.Duration) time.Duration {
	if len(sorted) == 0 {
		return 0
	}
	return sorted[len(sorted)/2].Round(time.Millisecond)
}

// alone measures the peak memory with all hosts behaving.
func (r *rig) alone(t *testing.T) (peak int64) {
	t.Helper()
	warm := func(n int) bool { return n >= 10 }
	if _, err := r.churn(t.Context(), warm); err != nil {
		t.Fatal(err)
	}
	testutil.Must(t, r.forget())
	_, err := r.churn(t.Context(), func(n int) bool { return n >= baseline })
	testutil.Must(t, err)
	peak, err = r.peak()
	testutil.Must(t, err)
	return peak
}

// playLie makes the host tell a lie until it has its effect, and for at least keptUp.
func (r *rig) playLie(t *testing.T, l lie, stamp string) {
	t.Helper()
	ctx, began := t.Context(), time.Now()
	testutil.Must(t, r.forgetEvents(ctx))
	l.tell(r.liar, stamp)
	r.runtime.turn(r.lying())
	if l.want != nil {
		if err := labtest.Until(ctx, patience, "the host is quarantined", func(ctx context.Context) error { return r.quarantined(ctx, l.want) }); err != nil {
			t.Errorf("%s: %v\n%s", l.name, err, r.bowline.LogTail(4000))
		}
		t.Logf("%s: quarantined after %s", l.name, time.Since(began).Round(time.Second))
	}
	select {
	case <-time.After(keptUp - time.Since(began)):
	case <-ctx.Done():
	}
	peak, err := r.peak()
	testutil.Must(t, err)
	t.Logf("%s: peak memory so far %d MiB", l.name, peak>>20)
}

// stopLying makes the host behave until its node is Ready. After the last lie that ends in a
// quarantine the pool decides when to try again.
func (r *rig) stopLying(t *testing.T, l lie, last bool) {
	t.Helper()
	honest(r.liar)
	r.runtime.turn(r.behaving())
	if l.want != nil && !last {
		if _, err := r.configure(); err != nil {
			t.Fatal(err)
		}
	}
	if err := labtest.Until(t.Context(), patience, "the host is managed again", r.managedAgain); err != nil {
		t.Fatalf("%s: %v\n%s", l.name, err, r.bowline.LogTail(4000))
	}
}

// shellsLie makes the host's sshd lie for a while, first to an existing link and then to a
// starting driver. A budget is exceeded on the existing link: the first question of a starting driver
// reads at most 64 KiB of the answer.
func (r *rig) shellsLie(t *testing.T, l shellLie) {
	t.Helper()
	before := r.remember(t)
	began := time.Now()
	r.shells.tell(l)
	r.sshd.turn(to("tcp", r.shells.Addr().String()))
	if l.want != nil {
		r.awaitQuarantine(t, l, before)
		t.Logf("%s: quarantined after %s", l.name, time.Since(began).Round(time.Second))
	}
	for _, pause := range []time.Duration{keptUp - time.Since(began), keptUp} {
		select {
		case <-time.After(pause):
		case <-t.Context().Done():
		}
		if _, err := r.configure(); err != nil {
			t.Fatal(err)
		}
	}
	if l.want == nil {
		r.onlyRefused(t, l.name, before)
	}
	peak, err := r.peak()
	testutil.Must(t, err)
	t.Logf("%s: peak memory so far %d MiB", l.name, peak>>20)
}

// trueShells makes the host's sshd behave until its node is Ready.
func (r *rig) trueShells(t *testing.T, l shellLie) {
	t.Helper()
	r.sshd.turn(to("tcp", r.bad.Wire.Address()))
	if _, err := r.configure(); err != nil {
		t.Fatal(err)
	}
	if err := labtest.Until(t.Context(), patience, "the host is managed again", r.managedAgain); err != nil {
		t.Fatalf("%s: %v\n%s", l.name, err, r.bowline.LogTail(4000))
	}
}

func (r *rig) managedAgain(ctx context.Context) error {
	n, err := r.fakes.Lab.Client.CoreV1().Nodes().Get(ctx, r.bad.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if c := condition(n, v1.NodeReady); c == nil || c.Status != v1.ConditionTrue {
		return fmt.Errorf("Ready is %+v", c)
	}
	if c := condition(n, "HostQuarantined"); c != nil && c.Status != v1.ConditionFalse {
		return fmt.Errorf("HostQuarantined is %+v", c)
	}
	return nil
}

func condition(n *v1.Node, t v1.NodeConditionType) *v1.NodeCondition {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == t {
			return &n.Status.Conditions[i]
		}
	}
	return nil
}

// life identifies who manages a good host's node, and since when it is Ready.
type life struct{ instance, ready string }

func (r *rig) lives(t *testing.T) map[string]life {
	t.Helper()
	all := map[string]life{}
	for _, m := range r.good {
		n, err := r.fakes.Lab.Client.CoreV1().Nodes().Get(t.Context(), m.Name, metav1.GetOptions{})
		testutil.Must(t, err)
		c := condition(n, v1.NodeReady)
		all[m.Name] = life{n.Annotations["bowline.io/instance"], fmt.Sprint(c.Status, " since ", c.LastTransitionTime)}
	}
	return all
}

// untouched checks that the process, the drivers of the good hosts and all residents are the same
// as before, and that the host that lied takes pods.
func (r *rig) untouched(t *testing.T, before map[string]life) {
	t.Helper()
	for name, now := range r.lives(t) {
		if now != before[name] {
			t.Errorf("%s is %+v, and was %+v", name, now, before[name])
		}
	}
	for _, m := range r.fakes.Machines {
		for op, want := range map[fake.Op]int{fake.OpStart: 1, fake.OpTerm: 0, fake.OpKill: 0, fake.OpExit: 0} {
			if n := m.Runtime.Count(op, "resident"); n != want {
				t.Errorf("the resident of %s has %d of %s", m.Name, n, op)
			}
		}
	}
	if _, err := r.start(t.Context(), "again", r.bad.Name); err != nil {
		t.Error(err)
	}
}
