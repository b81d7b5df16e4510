package syncloop_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/tracing"
)

// spans are those that a world's node has made.
type spans struct {
	t  *testing.T
	of *tracetest.InMemoryExporter
}

// traced is newParallelWorld whose node records the traces that sampler chooses.
func traced(t *testing.T, sampler sdktrace.Sampler) (*world, spans) {
	w := newParallelWorld(t)
	s := spans{t, tracetest.NewInMemoryExporter()}
	w.tracer = sdktrace.NewTracerProvider(sdktrace.WithSyncer(s.of), sdktrace.WithSampler(sampler)).Tracer("test")
	w.setHook(tracing.Hook(w.tracer, nil))
	return w, s
}

// named returns the spans of this name that have ended.
func (s spans) named(name string) []tracetest.SpanStub {
	return slices.DeleteFunc(s.of.GetSpans(), func(x tracetest.SpanStub) bool { return x.Name != name })
}

// one returns the only span of this name.
func (s spans) one(name string) tracetest.SpanStub {
	s.t.Helper()
	found := s.named(name)
	if len(found) != 1 {
		s.t.Fatalf("%d spans %q: %s", len(found), name, s.names())
	}
	return found[0]
}

func (s spans) names() string {
	var all []string
	for _, x := range s.of.GetSpans() {
		all = append(all, x.Name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

func attributes(x tracetest.SpanStub) string {
	var all []string
	for _, a := range x.Attributes {
		all = append(all, string(a.Key)+"="+a.Value.String())
	}
	return strings.Join(all, " ")
}

// TestTraceOfAStart: the start of a pod is a trace. Its operations are below it, and the calls to the runtime
// below these. What happens to the pod later is in no trace.
func TestTraceOfAStart(t *testing.T) {
	w, s := traced(t, sdktrace.AlwaysSample())
	w.up()
	p := w.createReady(newPod("web"))
	w.until("the start is over", func() bool { return len(s.named("pod start")) == 1 })
	root := s.one("pod start")
	if got, want := attributes(root), fmt.Sprintf("k8s.namespace.name=%s k8s.pod.name=web k8s.pod.uid=%s k8s.node.name=node", namespace, p.UID); got != want {
		t.Errorf("the start has %q, want %q", got, want)
	}
	if root.Parent.IsValid() || root.Status.Code != codes.Unset || !root.EndTime.After(root.StartTime) {
		t.Errorf("the start: %+v", root)
	}
	for _, operation := range []string{"volumes", "sandbox", "pull", "start"} {
		all := s.named(operation)
		if len(all) == 0 || len(all) > 1 && operation != "volumes" { // a sandbox may have them prepared again
			t.Fatalf("%d spans %q: %s", len(all), operation, s.names())
		}
		x := all[0]
		if x.Parent.SpanID() != root.SpanContext.SpanID() || x.SpanContext.TraceID() != root.SpanContext.TraceID() || x.Status.Code != codes.Unset {
			t.Errorf("%s is not a part of the start, or failed: %+v", operation, x)
		}
	}
	for call, operation := range map[string]string{"cri/RunPodSandbox": "sandbox", "cri/PullImage": "pull", "cri/CreateContainer": "start", "cri/StartContainer": "start"} {
		if x := s.one(call); x.Parent.SpanID() != s.one(operation).SpanContext.SpanID() {
			t.Errorf("%s is not a part of %s: %+v", call, operation, x)
		}
	}
	if got := attributes(s.one("pull")); got != "k8s.container.name=app container.image.name=registry.example/bowline-test:1" {
		t.Errorf("the pull has %q", got)
	}
	w.untilSettled("web")
	before := s.names()
	w.end(1, "web")
	if after := s.names(); after != before {
		t.Errorf("the end of the pod is in the trace:\n%s\n%s", before, after)
	}
}

// TestTraceOfAFailure: a failed operation says why by the reason that the status has. No text of the host or the
// registry is in a span: it may have a credential.
func TestTraceOfAFailure(t *testing.T) {
	w, s := traced(t, sdktrace.AlwaysSample())
	w.up()
	w.rt.Inject("PullImage", fake.Fault{Before: status.Error(grpccodes.Unknown, "denied for Bearer secret-token"), Times: -1})
	w.api.create(newPod("web"))
	w.until("the pull has failed", func() bool { return len(s.named("pull")) > 0 })
	if x := s.named("pull")[0]; x.Status.Code != codes.Error || x.Status.Description != "ErrImagePull" {
		t.Errorf("the pull: %+v", x.Status)
	}
	if x := s.named("cri/PullImage")[0]; x.Status.Code != codes.Error || x.Status.Description != "Unknown" {
		t.Errorf("the call: %+v", x.Status)
	}
	if n := len(s.named("pod start")); n != 0 {
		t.Errorf("the start is over, and the pod waits for its image")
	}
	w.end(1, "web")
	if x := s.one("pod start"); x.Status.Code != codes.Error || x.Status.Description != "the pod ended before it ran" {
		t.Errorf("the start: %+v", x.Status)
	}
	if all := fmt.Sprintf("%+v", s.of.GetSpans()); strings.Contains(all, "secret-token") {
		t.Error("a span has what the registry said")
	}
}

// TestTraceOfAStartThatIsCutOff: when the process ends, so do its spans. The next process follows only pods that
// nothing of runs yet.
func TestTraceOfAStartThatIsCutOff(t *testing.T) {
	w, s := traced(t, sdktrace.AlwaysSample())
	w.up()
	hold := make(chan struct{})
	w.rt.Inject("PullImage", fake.Fault{Hold: hold})
	w.api.create(newPod("web"))
	w.until("the sandbox is made", func() bool { return len(s.named("sandbox")) == 1 })
	w.down()
	close(hold)
	if x := s.one("pod start"); x.Status.Code != codes.Error || x.Status.Description != "the worker ended before the pod ran" {
		t.Errorf("the start: %+v", x.Status)
	}
	s.of.Reset()
	w.up()
	w.untilReady("web")
	w.untilSettled("web")
	if got := s.names(); got != "" {
		t.Errorf("an adopted pod has spans: %s", got)
	}
	w.end(1, "web")
}

// TestADeletedPodDoesNotStart: a pod that is already deleted when its worker sees it first has no trace.
// Otherwise a pod whose worker has ended, and whose object is still there, would get a second one.
func TestADeletedPodDoesNotStart(t *testing.T) {
	w, s := traced(t, sdktrace.AlwaysSample())
	w.api.create(newPod("web"))
	w.api.delete("web", 1)
	w.up()
	w.untilGone()
	if got := s.named("pod start"); len(got) != 0 {
		t.Errorf("the start of a deleted pod: %+v", got)
	}
}

// TestUnsampledStart: a start that is not sampled has no spans, and neither have its calls.
func TestUnsampledStart(t *testing.T) {
	w, s := traced(t, sdktrace.NeverSample())
	w.up()
	w.createReady(newPod("web"))
	w.end(1, "web")
	if got := s.names(); got != "" {
		t.Errorf("spans: %s", got)
	}
}

// TestRestartsAreNoStarts: a container that restarts while its pod starts has an operation each time, and one
// that restarts later has none.
func TestRestartsAreNoStarts(t *testing.T) {
	w, s := traced(t, sdktrace.AlwaysSample())
	w.up()
	w.createReady(with(newPod("web"), func(p *v1.Pod) {
		p.Spec.InitContainers = []v1.Container{newContainer("first", "exit 0")}
	}))
	w.until("the start is over", func() bool { return len(s.named("pod start")) == 1 })
	if n := len(s.named("start")); n != 2 {
		t.Errorf("%d containers were started, want the init container and the main one: %s", n, s.names())
	}
	w.untilSettled("web")
	starts := w.rt.Count(fake.OpStart, "app")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := w.node.client.StopContainer(ctx, w.instance("web", "app"), 0); err != nil {
		t.Fatal(err)
	}
	w.until("the container runs again", func() bool { return w.rt.Count(fake.OpStart, "app") > starts })
	w.untilReady("web")
	w.untilSettled("web")
	if n := len(s.named("start")); n != 2 {
		t.Errorf("a later restart is in the trace: %s", s.names())
	}
	w.end(1, "web")
}
