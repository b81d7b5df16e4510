package main

import (
	"context"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pool"
	"github.com/bowline-k8s/bowline/provider"
)

// TestADriverEndsWithItsBudget: by an error that is handed up, by one that is not, and by
// a panic in a goroutine; and it is counted for that host.
func TestADriverEndsWithItsBudget(t *testing.T) {
	for name, c := range map[string]struct {
		drive func(ctx context.Context, a *budget.Account) error
		want  string
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
			err := withinBudget(t.Context(), host, func(ctx context.Context) error { return c.drive(ctx, budget.From(ctx)) })
			if !isHostile(err) || !strings.Contains(err.Error(), c.want) {
				t.Fatal(err)
			}
			w := httptest.NewRecorder()
			processMetrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
			if line := `bowline_host_quarantines_total{budget="` + strings.Fields(name)[0] + `",host="` + host + `"} 1`; name == strings.Fields(name)[0] && !strings.Contains(w.Body.String(), line) {
				t.Errorf("no line %s", line)
			}
		})
	}
	budgets.keep(map[string]pool.State{})
	w := httptest.NewRecorder()
	processMetrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if strings.Contains(w.Body.String(), "box-Items") {
		t.Error("a host that is gone is still measured")
	}
}

// TestADriverWithinItsBudget: other errors, and ends that were asked for, are not hostile.
func TestADriverWithinItsBudget(t *testing.T) {
	failed := errors.New("no runtime")
	if err := withinBudget(t.Context(), "box", func(context.Context) error { return failed }); !errors.Is(err, failed) || isHostile(err) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := withinBudget(ctx, "box", func(ctx context.Context) error {
		cancel()
		_ = budget.From(ctx).Exceed(budget.Items, "late")
		<-ctx.Done()
		return nil
	}); err != nil {
		t.Errorf("ended by the pool, it says %v", err)
	}
}

func TestQuarantineIsShown(t *testing.T) {
	own := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "box", Annotations: map[string]string{provider.AnnotationDriver: "bowline"}},
		Status: v1.NodeStatus{NodeInfo: v1.NodeSystemInfo{KubeletVersion: "v1"}, Conditions: []v1.NodeCondition{
			{Type: v1.NodeMemoryPressure, Status: v1.ConditionFalse}, {Type: v1.NodeReady, Status: v1.ConditionTrue}}},
	}
	cause := budget.New(budget.Limits{}).Exceed(budget.ReplyBytes, "the reply to ListPodSandbox")
	client := kubernetesfake.NewClientset(own)
	if err := showQuarantine(t.Context(), client, "box", cause); err != nil {
		t.Fatal(err)
	}
	node, err := client.CoreV1().Nodes().Get(t.Context(), "box", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[v1.NodeConditionType]v1.NodeCondition{}
	for _, c := range node.Status.Conditions {
		got[c.Type] = c
	}
	if c := got[hostQuarantined]; c.Status != v1.ConditionTrue || c.Reason != "BudgetReplyBytes" || !strings.Contains(c.Message, "the reply to ListPodSandbox") {
		t.Errorf("the condition is %+v", c)
	}
	if c := got[v1.NodeReady]; c.Status != v1.ConditionFalse || c.Reason != reasonQuarantined || len(got) != 3 {
		t.Errorf("the conditions are %+v", got)
	}
	events, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(events.Items) != 1 || events.Items[0].Reason != reasonQuarantined || events.Items[0].Type != v1.EventTypeWarning {
		t.Errorf("the events are %+v, %v", events, err)
	}

	// Not on a node of another's, and not where there is none.
	other := own.DeepCopy()
	other.Annotations = nil
	client = kubernetesfake.NewClientset(other)
	if err := showQuarantine(t.Context(), client, "box", cause); err == nil {
		t.Error("another agent's node was written")
	}
	for _, a := range client.Actions() {
		if a.GetVerb() != "get" {
			t.Errorf("%s of %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
	if err := showQuarantine(t.Context(), kubernetesfake.NewClientset(), "box", cause); err != nil {
		t.Error(err)
	}
}

func TestReportOfAQuarantine(t *testing.T) {
	cfg := &config.Host{Name: "box", HostObject: "box"}
	d := &drivers{byName: map[string]*driver{}}
	d.begin(cfg)
	until := time.Now().Add(time.Minute)
	r, ok := d.report("box", pool.State{Phase: pool.Quarantined, Err: errors.New("budget"), NextTry: until})
	if !ok || r.Quarantined != until || r.Err == nil {
		t.Errorf("it is %+v", r)
	}
}
