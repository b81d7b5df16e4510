package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubernetesfake "k8s.io/client-go/kubernetes/fake"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/cri/lying"
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

// TestQuarantineFromTheStart: a host that lies from the start is shown as quarantined, though
// its machine was never claimed: on the Node that was made of it, and on no other. While a
// lease says that somebody may drive the node, Ready is theirs to say.
func TestQuarantineFromTheStart(t *testing.T) {
	honest, liar := fake.Run(t, fake.Config{}), lying.New()
	// The name of the runtime is a status, and longer than one may be.
	liar.Answer("Version", lying.Message(&runtimeapi.VersionResponse{Version: "0.1.0", RuntimeName: strings.Repeat("x", 2<<20), RuntimeApiVersion: "v1"}))
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(liar.Serve(l))
	ours := map[string]string{provider.AnnotationDriver: "bowline", v1alpha1.HostAnnotation: "box"}
	for name, c := range map[string]struct {
		annotations map[string]string // of the node; nil: there is none
		renewed     time.Duration     // ago; 0: there is no lease
		want        []v1.NodeConditionType
		liar        bool // the runtime lies, and else the machine
		panics      bool // over what the machine says
	}{
		"ours":                        {annotations: ours, renewed: time.Hour, want: []v1.NodeConditionType{hostQuarantined, v1.NodeReady}},
		"ours without a lease":        {annotations: ours, renewed: 0, want: []v1.NodeConditionType{hostQuarantined, v1.NodeReady}},
		"ours, perhaps driven":        {annotations: ours, renewed: 5 * time.Second, want: []v1.NodeConditionType{hostQuarantined}},
		"ours, its runtime lies":      {annotations: ours, renewed: time.Hour, want: []v1.NodeConditionType{hostQuarantined, v1.NodeReady}, liar: true},
		"another's, its runtime lies": {annotations: map[string]string{"x": "y"}, renewed: time.Hour, liar: true},
		"ours, a panic":               {annotations: ours, renewed: time.Hour, want: []v1.NodeConditionType{hostQuarantined, v1.NodeReady}, panics: true},
		"no node yet":                 {annotations: nil, renewed: 0, want: nil},
		"a kubelet's":                 {annotations: map[string]string{"x": "y"}, renewed: time.Hour, want: nil},
		"of another Host":             {annotations: map[string]string{provider.AnnotationDriver: "bowline", v1alpha1.HostAnnotation: "other"}, renewed: time.Hour, want: nil},
		"of a configuration":          {annotations: map[string]string{provider.AnnotationDriver: "bowline"}, renewed: time.Hour, want: nil},
		"not marked yet":              {annotations: map[string]string{v1alpha1.HostAnnotation: "box"}, renewed: time.Hour, want: nil},
	} {
		t.Run(name, func(t *testing.T) {
			var patches, events, others []string
			api := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				body, _ := io.ReadAll(r.Body)
				node := &v1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}, ObjectMeta: metav1.ObjectMeta{Name: "box", UID: "u2", Annotations: c.annotations}}
				missing := func() {
					w.WriteHeader(http.StatusNotFound)
					fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound"}`)
				}
				switch r.Method + " " + r.URL.Path {
				case "GET /version":
					fmt.Fprint(w, goodVersion)
				case "POST /apis/authentication.k8s.io/v1/selfsubjectreviews":
					fmt.Fprint(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":"system:node:box"}}}`)
				case "GET /api/v1/namespaces/default/services/kubernetes":
					fmt.Fprint(w, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"kubernetes","uid":"u1"}}`)
				case "GET /api/v1/nodes/box":
					if c.annotations == nil {
						missing()
						return
					}
					_ = json.NewEncoder(w).Encode(node)
				case "GET /apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/box":
					if c.renewed == 0 {
						missing()
						return
					}
					fmt.Fprintf(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"box"},"spec":{"leaseDurationSeconds":40,"renewTime":%q}}`,
						time.Now().Add(-c.renewed).UTC().Format("2006-01-02T15:04:05.000000Z"))
				case "PATCH /api/v1/nodes/box/status":
					patches = append(patches, string(body))
					_ = json.NewEncoder(w).Encode(node)
				case "POST /api/v1/namespaces/default/events":
					events = append(events, string(body))
					fmt.Fprint(w, `{"kind":"Event","apiVersion":"v1","metadata":{"name":"x"}}`)
				default:
					others = append(others, r.Method+" "+r.URL.Path)
					missing()
				}
			}))
			defer api.Close()
			cfg := &config.Host{Name: "box", NodeName: "box", HostObject: "box", Endpoint: "unix://" + honest.Socket, RootDirectory: t.TempDir(),
				Kubeconfig: kubeconfig(t, api.URL, api.Certificate(), nil, nil)}
			d := &drivers{byName: map[string]*driver{}, recognize: func(ctx context.Context, _ string, _ v1alpha1.MachineStatus) error {
				if c.panics {
					panic("found")
				}
				// As a reader does that finds too much in what the machine is.
				return budget.From(ctx).Exceed(budget.LineBytes, "a line of the machine's facts")
			}}
			cfg.FailSwapOn = new(bool)
			if c.liar {
				cfg.Endpoint = "unix://" + l.Addr().String()
				d.recognize = func(context.Context, string, v1alpha1.MachineStatus) error { return nil }
			}
			if err := d.drive(t.Context(), cfg, nil); !isHostile(err) {
				t.Fatalf("it ended with: %v", err)
			}
			var got []v1.NodeConditionType
			for _, patch := range patches {
				var n v1.Node
				if err := json.Unmarshal([]byte(patch), &n); err != nil {
					t.Fatal(err)
				}
				for _, condition := range n.Status.Conditions {
					got = append(got, condition.Type)
					if !strings.Contains(condition.Message, "the machine's facts") && !strings.Contains(condition.Message, "the reply to Version") && !strings.Contains(condition.Message, "panicked: found") {
						t.Errorf("the condition is %+v", condition)
					}
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("the conditions are %v, want %v", got, c.want)
			}
			if want := min(len(c.want), 1); len(events) != want || len(others) != 0 {
				t.Errorf("%d events, want %d; also asked for: %v", len(events), want, others)
			}
		})
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
