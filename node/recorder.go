package node

import (
	"context"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/bowline-k8s/bowline/kubeclient"
)

// newRecorder creates the event recorder, with the kubelet's component name.
func newRecorder(nodeName string) (record.EventBroadcaster, record.EventRecorder) {
	b := record.NewBroadcaster(record.WithCorrelatorOptions(record.CorrelatorOptions{SpamKeyFunc: spamKey}))
	return b, b.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: nodeName})
}

// spamKey names the events that share a budget of client-go's correlator: 25 at once, then one each five
// minutes. Like a kubelet's, those of one pod share one. Those of the node share one by their reason, so
// that one that comes all the time does not hide the others.
func spamKey(e *v1.Event) string {
	about := e.InvolvedObject
	key := []string{e.Source.Component, e.Source.Host, about.Kind, about.Namespace, about.Name, string(about.UID), about.APIVersion, e.Type}
	if about.Kind == "Node" {
		key = append(key, e.Reason)
	}
	return strings.Join(key, "\x00")
}

// eventClient returns a client for events alone. Its own rate limit (eventRecordQPS and eventBurst)
// keeps many events from delaying the statuses of the same pods.
func eventClient(c *rest.Config, qps, burst int32) (*typedcore.CoreV1Client, error) {
	return typedcore.NewForConfig(kubeclient.Limit(rest.CopyConfig(c), qps, burst))
}

// eventPatience is how long after it happened an event may be held back.
const eventPatience = 5 * time.Second

// patientSink delays events while pods are being started, each for at most eventPatience: a status
// that a Service waits for is more urgent than an event about something past.
type patientSink struct {
	record.EventSink
	ctx   context.Context
	quiet func() <-chan struct{}
	met   <-chan struct{} // closed when the API server has been met
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

// wait blocks until the event may be sent. It returns false if ctx ends before the API server has
// been met: an unmet one may belong to another cluster, so the event is dropped.
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
