// Package tracing sends OpenTelemetry spans of this process to a collector, over OTLP and gRPC, and makes a
// span of each call to a host that belongs to a recorded operation. Nothing of it is global: its user passes
// the Tracer on.
package tracing

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// defaultEndpoint is a kubelet's: a collector on the same machine.
const defaultEndpoint = "localhost:4317"

// scope names the instrumented module in each span.
const scope = "github.com/bowline-k8s/bowline"

// Bounds of the export. A span that finds the queue full is dropped, so that a collector that is slow or away
// delays nothing.
const (
	maxQueue       = 2048
	maxBatch       = 512
	batchPeriod    = 5 * time.Second
	exportTimeout  = 10 * time.Second // of one batch
	closingTimeout = 3 * time.Second  // of the last batches
)

// Provider makes the spans of the process. A nil Provider makes none.
type Provider struct {
	spans *sdktrace.TracerProvider
	log   klog.Logger
}

// New returns a provider that records cfg.SamplingRatePerMillion of all traces; nil, without any goroutine or
// connection, if that is nothing. The error is about the endpoint.
func New(log klog.Logger, cfg *tracingapi.TracingConfiguration, version string) (*Provider, error) {
	if cfg == nil || ptr.Deref(cfg.SamplingRatePerMillion, 0) <= 0 {
		return nil, nil
	}
	endpoint := ptr.Deref(cfg.Endpoint, defaultEndpoint)
	to, err := dial(endpoint)
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint %q: %w", endpoint, err)
	}
	otlp, err := otlptrace.New(context.Background(), to)
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint %q: %w", endpoint, err)
	}
	return newProvider(&exporter{SpanExporter: otlp, log: log, endpoint: endpoint}, *cfg.SamplingRatePerMillion, version, log), nil
}

func newProvider(e sdktrace.SpanExporter, perMillion int32, version string, log klog.Logger) *Provider {
	return &Provider{log: log, spans: sdktrace.NewTracerProvider(
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(float64(perMillion)/1e6))),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "bowline"), attribute.String("service.version", version))),
		sdktrace.WithBatcher(e, sdktrace.WithMaxQueueSize(maxQueue), sdktrace.WithMaxExportBatchSize(maxBatch),
			sdktrace.WithBatchTimeout(batchPeriod), sdktrace.WithExportTimeout(exportTimeout)),
	)}
}

// Tracer returns what spans are made with; nil if p is.
func (p *Provider) Tracer() trace.Tracer {
	if p == nil {
		return nil
	}
	return p.spans.Tracer(scope)
}

// Close sends the last spans, which takes three seconds at most.
func (p *Provider) Close() {
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closingTimeout)
	defer cancel()
	if err := p.spans.Shutdown(ctx); err != nil {
		p.log.Error(err, "Failed to send the last spans")
	}
}

// logPeriod is the interval between two logs of lost spans.
const logPeriod = 5 * time.Minute

// exporter logs which spans its next one loses. It returns no error: the SDK would pass it to a handler of the
// whole process. The SDK calls it for one batch at a time.
type exporter struct {
	sdktrace.SpanExporter
	log      klog.Logger
	endpoint string

	lost   int       // since it was logged
	logged time.Time // zero: never
}

func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	e.lost += len(spans)
	if now := time.Now(); e.logged.IsZero() || now.Sub(e.logged) >= logPeriod {
		e.log.Error(err, "Failed to send spans to the collector; they are lost", "endpoint", e.endpoint, "spans", e.lost)
		e.lost, e.logged = 0, now
	}
	return nil
}
