package main

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
)

// newRecorder makes the recorder of events, with the kubelet's component name.
func newRecorder(nodeName string) (record.EventBroadcaster, record.EventRecorder) {
	b := record.NewBroadcaster()
	return b, b.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: nodeName})
}

// eventClient is a client for events alone, at a pace of its own, which is the kubelet's
// too (eventRecordQPS and eventBurst): many events must not hold up the statuses of the same pods.
func eventClient(c *rest.Config) (*typedcore.CoreV1Client, error) {
	return typedcore.NewForConfig(ours(rest.CopyConfig(c)))
}

// eventPatience is how long after it happened an event may be held back.
const eventPatience = 5 * time.Second

// patientSink holds events back while pods are being started, each for at most
// eventPatience: what they tell of has happened, and a status that a Service
// waits for is worth more.
type patientSink struct {
	record.EventSink
	ctx   context.Context
	quiet func() <-chan struct{}
	met   <-chan struct{} // closed when the API server may be told anything
}

func (s *patientSink) Create(e *v1.Event) (*v1.Event, error) {
	if !s.wait(e) {
		return e, nil
	}
	return s.EventSink.Create(e)
}

func (s *patientSink) Patch(e *v1.Event, data []byte) (*v1.Event, error) {
	if !s.wait(e) {
		return e, nil
	}
	return s.EventSink.Patch(e, data)
}

// wait says whether the event is sent: not to an API server that was never met, which may
// be another cluster's. There is nobody else to tell.
func (s *patientSink) wait(e *v1.Event) bool {
	select {
	case <-s.met:
	default:
		select {
		case <-s.met:
		case <-s.ctx.Done():
			return false
		}
	}
	left := eventPatience - time.Since(e.LastTimestamp.Time)
	if left <= 0 {
		return true
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-s.quiet():
	case <-timer.C:
	case <-s.ctx.Done():
	}
	return true
}
