package fleet

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/node"
	"github.com/bowline-k8s/bowline/pool"
)

// TestADriverEndsWithItsBudget: an exceeded budget ends the driver whether its error is returned,
// is not returned, or is a panic in a goroutine. It is counted for that host.
func TestADriverEndsWithItsBudget(t *testing.T) {
	for name, c := range map[string]struct {
		manage func(ctx context.Context, a *budget.Account) error
		want   string
	}{
		"Items": {func(_ context.Context, a *budget.Account) error { return a.Exceed(budget.Items, "a list") }, "budget Items"},
		"LineBytes": {func(ctx context.Context, a *budget.Account) error {
			a.Go("a reader", func() { _ = a.Exceed(budget.LineBytes, "a line") })
			<-ctx.Done()
			return ctx.Err()
		}, "budget LineBytes"},
		"Panic": {func(ctx context.Context, a *budget.Account) error {
			a.Go("a reader", func() { panic("found") })
			<-ctx.Done()
			return nil
		}, "a reader panicked: found"},
		"Panic of the driver itself": {func(context.Context, *budget.Account) error { panic("found") }, "the driver panicked: found"},
	} {
		t.Run(name, func(t *testing.T) {
			host := "box-" + strings.ReplaceAll(name, " ", "-") // the cases run in any order
			err := withinBudget(t.Context(), host, budget.Limits{}, func(ctx context.Context) error { return c.manage(ctx, budget.From(ctx)) })
			if !IsHostile(err) || !strings.Contains(err.Error(), c.want) {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			node.ProcessMetrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			if line := `bowline_host_quarantines_total{budget="` + strings.Fields(name)[0] + `",host="` + host + `"} 1`; name == strings.Fields(name)[0] && !strings.Contains(w.Body.String(), line) {
				t.Errorf("no line %s", line)
			}
		})
	}
	budgets.keep(func(string) bool { return true })
	w := httptest.NewRecorder()
	node.ProcessMetrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if strings.Contains(w.Body.String(), "box-Items") {
		t.Error("a host that is gone is still measured")
	}
}

// TestADriverWithinItsBudget: other errors, and requested stops, are not hostile.
func TestADriverWithinItsBudget(t *testing.T) {
	failed := errors.New("no runtime")
	if err := withinBudget(t.Context(), "box", budget.Limits{}, func(context.Context) error { return failed }); !errors.Is(err, failed) || IsHostile(err) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := withinBudget(ctx, "box", budget.Limits{}, func(ctx context.Context) error {
		cancel()
		_ = budget.From(ctx).Exceed(budget.Items, "late")
		<-ctx.Done()
		return nil
	}); err != nil {
		t.Errorf("ended by the pool, it says %v", err)
	}
}

func TestReportOfAQuarantine(t *testing.T) {
	cfg := &config.Host{Name: "box", HostObject: "box"}
	d := newDrivers(1)
	d.begin(cfg)
	until := time.Now().Add(time.Minute)
	r, ok := d.report("box", pool.State{Phase: pool.Quarantined, Err: errors.New("budget"), NextTry: until})
	if !ok || r.Quarantined != until || r.Err == nil {
		t.Errorf("it is %+v", r)
	}
}
