package hostile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// quarantines is the name of the metric that counts the quarantines of each host.
const quarantines = "bowline_host_quarantines_total"

// quarantined checks that the node's condition, and an event, name one of these budgets.
func (r *rig) quarantined(ctx context.Context, want []budget.Kind) error {
	n, err := r.fakes.Lab.Client.CoreV1().Nodes().Get(ctx, r.bad.Name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	c := condition(n, "HostQuarantined")
	if c == nil || c.Status != v1.ConditionTrue {
		return fmt.Errorf("the condition is %+v", c)
	}
	for _, kind := range want {
		if c.Reason == "Budget"+kind.String() {
			return r.eventOf(ctx, kind.String())
		}
	}
	return fmt.Errorf("the condition is %+v, want one of the budgets %v", c, want)
}

func (r *rig) eventOf(ctx context.Context, budget string) error {
	all, err := r.fakes.Lab.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=HostQuarantined"})
	if err != nil {
		return err
	}
	for _, e := range all.Items {
		if e.InvolvedObject.Name == r.bad.Name && strings.Contains(e.Message, budget) {
			return nil
		}
	}
	return fmt.Errorf("no event of %d names the budget %s", len(all.Items), budget)
}

func (r *rig) forgetEvents(ctx context.Context) error {
	return r.fakes.Lab.Client.CoreV1().Events(metav1.NamespaceDefault).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "reason=HostQuarantined"})
}

// remember removes the events of earlier quarantines, and returns the lines of the metric that counts
// them.
func (r *rig) remember(t *testing.T) (lines []string) {
	t.Helper()
	testutil.Must(t, r.forgetEvents(t.Context()))
	lines, err := r.metrics(quarantines)
	testutil.Must(t, err)
	return lines
}

// awaitQuarantine waits until the condition, an event and the metric, whose lines were before, show
// that the lie has exceeded its budget.
func (r *rig) awaitQuarantine(t *testing.T, l shellLie, before []string) {
	t.Helper()
	if err := labtest.Until(t.Context(), patience, "the host is quarantined", func(ctx context.Context) error {
		if err := r.quarantined(ctx, l.want); err != nil {
			return err
		}
		now, err := r.metrics(quarantines)
		if err == nil && slices.Equal(now, before) {
			err = fmt.Errorf("the metric has not changed: %q", now)
		}
		return err
	}); err != nil {
		t.Errorf("%s: %v\n%s", l.name, err, r.bowline.LogTail(4000))
	}
}

// onlyRefused checks that no condition, event or metric shows a quarantine since before: no request
// to the liar has exceeded a budget.
func (r *rig) onlyRefused(t *testing.T, name string, before []string) {
	t.Helper()
	ctx := t.Context()
	n, err := r.fakes.Lab.Client.CoreV1().Nodes().Get(ctx, r.bad.Name, metav1.GetOptions{})
	testutil.Must(t, err)
	if c := condition(n, "HostQuarantined"); c != nil && c.Status != v1.ConditionFalse {
		t.Errorf("%s: a lie that is only refused has the condition %+v", name, c)
	}
	all, err := r.fakes.Lab.Client.CoreV1().Events(metav1.NamespaceDefault).List(ctx, metav1.ListOptions{FieldSelector: "reason=HostQuarantined"})
	testutil.Must(t, err)
	for _, e := range all.Items {
		t.Errorf("%s: a lie that is only refused has the event: %s", name, e.Message)
	}
	now, err := r.metrics(quarantines)
	testutil.Must(t, err)
	if !slices.Equal(now, before) {
		t.Errorf("%s: a lie that is only refused is counted: %q, and before %q", name, now, before)
	}
}

// counted checks that the metrics count quarantines only for the host that lied.
func (r *rig) counted(t *testing.T) {
	t.Helper()
	counted, err := r.metrics(quarantines)
	if err != nil || len(counted) == 0 {
		t.Error(errors.Join(err, errors.New("no quarantine is counted")))
	}
	if slices.ContainsFunc(counted, func(line string) bool { return !strings.Contains(line, `host="`+r.bad.Name+`"`) }) {
		t.Errorf("quarantines of other hosts: %q", counted)
	}
	t.Logf("%s", strings.Join(counted, "\n"))
}
