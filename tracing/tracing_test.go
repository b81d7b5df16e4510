package tracing

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	grpccodes "google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

const everyTrace = int32(1_000_000)

// logger returns a logger, and its errors so far.
func logger(t *testing.T) (klog.Logger, func() []string) {
	log := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	return log, func() (errs []string) {
		for _, e := range log.GetSink().(ktesting.Underlier).GetBuffer().Data() {
			if e.Type == ktesting.LogError {
				errs = append(errs, fmt.Sprint(e.Message, " ", e.Err, " ", e.ParameterKVList))
			}
		}
		return errs
	}
}

// TestOff: while tracing is off, there is no provider, no goroutine and no hook.
func TestOff(t *testing.T) {
	none, nothing := int32(0), "127.0.0.1:1"
	log, _ := logger(t)
	before := runtime.NumGoroutine()
	for name, cfg := range map[string]*tracingapi.TracingConfiguration{"not set": nil, "no rate": {Endpoint: &nothing}, "rate 0": {SamplingRatePerMillion: &none}} {
		p, err := New(log, cfg, "v1")
		if p != nil || err != nil || p.Tracer() != nil {
			t.Errorf("%s: %v, %v", name, p, err)
		}
		p.Close()
	}
	if after := runtime.NumGoroutine(); after > before {
		t.Errorf("%d goroutines, before %d", after, before)
	}
	if Hook(nil, nil) != nil {
		t.Error("a hook is wrapped although there is no tracer")
	}
}

// TestHookCostsNothingAside: a call that belongs to no recorded span allocates nothing for traces.
func TestHookCostsNothingAside(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
	hook := Hook(tracer, nil)
	call := func(context.Context) error { return nil }
	ctx := trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{TraceID: [16]byte{1}, SpanID: [8]byte{1}})) // not sampled
	for name, ctx := range map[string]context.Context{"no span": t.Context(), "a span that is not recorded": ctx} {
		if n := testing.AllocsPerRun(100, func() { _ = hook(ctx, "cri/Status", call) }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	if n := len(spans.GetSpans()); n != 0 {
		t.Errorf("%d spans", n)
	}
}

// TestHook: a call of a recorded operation has a span with the kind of its failure, and its runtime the
// span's ID.
func TestHook(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	tracer := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)).Tracer("test")
	secret := errors.New("Bearer secret-token")
	for _, c := range []struct {
		label, want string
		err         error
	}{
		{"cri/RunPodSandbox", "", nil},
		{"cri/PullImage", "NotFound", status.Error(grpccodes.NotFound, secret.Error())},
		{"host/ReadFile", "unreachable", fmt.Errorf("%w: %w", secret, host.ErrUnreachable)},
		{"host/WriteTree", "deadline exceeded", fmt.Errorf("%w: %w", secret, context.DeadlineExceeded)},
		{"host/List", "cancelled", fmt.Errorf("%w: %w", secret, context.Canceled)},
		{"host/Mount", "failed", secret},
	} {
		spans.Reset()
		ctx, parent := tracer.Start(t.Context(), "operation")
		var sent metadata.MD
		hooked := host.Hook(func(ctx context.Context, label string, call func(context.Context) error) error { return call(ctx) })
		err := Hook(tracer, hooked)(ctx, c.label, func(ctx context.Context) error {
			sent, _ = metadata.FromOutgoingContext(ctx)
			return c.err
		})
		if !errors.Is(err, c.err) {
			t.Errorf("%s: the error became %v", c.label, err)
		}
		got := spans.GetSpans()
		if len(got) != 1 || got[0].Name != c.label || got[0].Parent.SpanID() != parent.SpanContext().SpanID() || got[0].SpanKind != trace.SpanKindClient {
			t.Errorf("%s: spans %+v", c.label, got)
			continue
		}
		if s := got[0].Status; s.Description != c.want || (s.Code == codes.Error) != (c.err != nil) {
			t.Errorf("%s: status %+v, want %q", c.label, s, c.want)
		}
		if strings.Contains(fmt.Sprintf("%+v", got), "secret-token") {
			t.Errorf("%s: a span has the text of the error", c.label)
		}
		want := ""
		if strings.HasPrefix(c.label, "cri/") {
			s := got[0].SpanContext
			want = fmt.Sprintf("00-%s-%s-01", s.TraceID(), s.SpanID())
		}
		if got := strings.Join(sent.Get("traceparent"), ","); got != want {
			t.Errorf("%s: the runtime got the traceparent %q, want %q", c.label, got, want)
		}
	}
}

// collector is an OTLP receiver on loopback.
type collector struct {
	address string
	mu      sync.Mutex
	got     []*tracepb.ResourceSpans
	reply   []byte // of ExportTraceServiceResponse
	seen    chan struct{}
}

func newCollector(t *testing.T) *collector {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	c := &collector{address: l.Addr().String(), seen: make(chan struct{}, 100)}
	server := grpc.NewServer(grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		if method, _ := grpc.MethodFromServerStream(stream); method != "/opentelemetry.proto.collector.trace.v1.TraceService/Export" {
			return status.Error(grpccodes.Unimplemented, method)
		}
		request := &tracepb.TracesData{}
		if err := stream.RecvMsg(request); err != nil {
			return err
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.got = append(c.got, request.ResourceSpans...)
		c.seen <- struct{}{}
		reply := &emptypb.Empty{}
		reply.ProtoReflect().SetUnknown(c.reply)
		return stream.SendMsg(reply)
	}))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return c
}

// TestCollector: a real receiver gets the spans, at the latest when the provider is closed.
func TestCollector(t *testing.T) {
	c := newCollector(t)
	log, errs := logger(t)
	rate := everyTrace
	p, err := New(log, &tracingapi.TracingConfiguration{Endpoint: &c.address, SamplingRatePerMillion: &rate}, "v1.2.3")
	testutil.Must(t, err)
	ctx, parent := p.Tracer().Start(t.Context(), "pod start")
	testutil.Must(t, Hook(p.Tracer(), nil)(ctx, "cri/RunPodSandbox", func(context.Context) error { return nil }))
	parent.End()
	p.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.got) != 1 || len(c.got[0].ScopeSpans) != 1 {
		t.Fatalf("the collector got %v; errors %q", c.got, errs())
	}
	resource := fmt.Sprint(c.got[0].Resource)
	for _, want := range []string{"service.name", `"bowline"`, "service.version", `"v1.2.3"`} {
		if !strings.Contains(resource, want) {
			t.Errorf("the resource %s has no %s", resource, want)
		}
	}
	s := c.got[0].ScopeSpans[0]
	if len(s.Spans) != 2 || s.Spans[0].Name != "cri/RunPodSandbox" || s.Spans[1].Name != "pod start" ||
		string(s.Spans[0].ParentSpanId) != string(s.Spans[1].SpanId) || s.Scope.Name != scope {
		t.Errorf("the spans are %v", s)
	}
	if got := errs(); len(got) > 0 {
		t.Errorf("errors: %q", got)
	}
}

// TestSampling: of a thousand traces, about the configured part is recorded.
func TestSampling(t *testing.T) {
	log, _ := logger(t)
	p := newProvider(tracetest.NewInMemoryExporter(), 250_000, "v1", log)
	defer p.Close()
	recorded := 0
	for range 1000 {
		if _, s := p.Tracer().Start(t.Context(), "pod start"); s.IsRecording() {
			recorded++
		}
	}
	if recorded < 150 || recorded > 350 {
		t.Errorf("%d of 1000 traces are recorded, want about 250", recorded)
	}
}

// TestRejectedSpans: what a collector takes only a part of is logged with its own words.
func TestRejectedSpans(t *testing.T) {
	c := newCollector(t)
	var partial []byte
	partial = protowire.AppendTag(partial, 1, protowire.VarintType)
	partial = protowire.AppendVarint(partial, 7)
	partial = protowire.AppendTag(partial, 2, protowire.BytesType)
	partial = protowire.AppendString(partial, "too many")
	c.reply = protowire.AppendTag(c.reply, 1, protowire.BytesType)
	c.reply = protowire.AppendBytes(c.reply, partial)
	log, errs := logger(t)
	rate := everyTrace
	p, err := New(log, &tracingapi.TracingConfiguration{Endpoint: &c.address, SamplingRatePerMillion: &rate}, "v1")
	testutil.Must(t, err)
	_, span := p.Tracer().Start(t.Context(), "pod start")
	span.End()
	p.Close()
	if got := strings.Join(errs(), "\n"); !strings.Contains(got, `the collector has rejected 7 spans: "too many"`) {
		t.Errorf("errors: %q", got)
	}
}

// TestReplies: a reply that is cut or unknown is no rejection, and nothing panics.
func TestReplies(t *testing.T) {
	for _, reply := range [][]byte{nil, {}, {0x0a}, {0x0a, 0x05, 0x08}, {0xff}, {0x0d, 1, 2, 3, 4}, {0x08, 0x01}, {0x0a, 0x02, 0x08, 0x00}} {
		if err := rejection(reply); err != nil {
			t.Errorf("%x: %v", reply, err)
		}
	}
}

// stubborn is an exporter that fails, or hangs until it is released.
type stubborn struct {
	hold chan struct{} // nil: it fails
	err  error
}

func (s *stubborn) ExportSpans(ctx context.Context, _ []sdktrace.ReadOnlySpan) error {
	if s.hold != nil {
		<-s.hold
	}
	return s.err
}

func (s *stubborn) Shutdown(context.Context) error { return nil }

// TestErrorsAreLoggedAtARate: a collector that is away is an error at once, and then every five minutes, with
// the number of the spans that were lost.
func TestErrorsAreLoggedAtARate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, errs := logger(t)
		next := &stubborn{err: errors.New("connection refused")}
		e := &exporter{SpanExporter: next, log: log, endpoint: "collector:4317"}
		batch := make([]sdktrace.ReadOnlySpan, 10)
		for range 12 {
			if err := e.ExportSpans(t.Context(), batch); err != nil {
				t.Errorf("the error reaches the handler of the process: %v", err)
			}
			time.Sleep(time.Minute)
		}
		got := errs()
		if len(got) != 3 || !strings.Contains(got[0], "connection refused") || !strings.Contains(got[0], "spans 10") || !strings.Contains(got[1], "spans 50") {
			t.Errorf("errors: %q", got)
		}
		next.err = nil
		testutil.Must(t, e.ExportSpans(t.Context(), batch))
		if len(errs()) != 3 {
			t.Errorf("errors: %q", errs())
		}
	})
}

// TestACollectorThatHangsDelaysNothing: spans are dropped when the queue is full, and the process does not wait
// for the last ones for long.
func TestACollectorThatHangsDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, errs := logger(t)
		hanging := &stubborn{hold: make(chan struct{})}
		p := newProvider(hanging, everyTrace, "v1", log)
		began := time.Now()
		for range 3 * maxQueue {
			_, span := p.Tracer().Start(t.Context(), "pod start")
			span.End()
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the spans took %s", took)
		}
		p.Close()
		if took := time.Since(began); took != closingTimeout {
			t.Errorf("the end took %s, want %s", took, closingTimeout)
		}
		if got := errs(); len(got) != 1 || !strings.Contains(got[0], "Failed to send the last spans") {
			t.Errorf("errors: %q", got)
		}
		close(hanging.hold)
		synctest.Wait()
	})
}
