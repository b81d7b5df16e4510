package hosts

import (
	"context"
	"fmt"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/pod"
)

// component is the source of events on Hosts.
const component = "bowline"

// emit writes events on a Host, as far as their bounds allow. A failure to write one is only logged,
// because the conditions say the same.
func (s *Source) emit(ctx context.Context, h *v1alpha1.Host, events []event) {
	s.write(ctx, v1.ObjectReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Host", Name: h.Name, UID: h.UID, ResourceVersion: h.ResourceVersion,
	}, s.allowed(h.Name, events))
}

// emitOnNode writes an event on the node of a Host.
func (s *Source) emitOnNode(ctx context.Context, node string, e event) {
	s.write(ctx, *pod.NodeReference(node), []event{e})
}

// allowed returns the events that the bounds of the Host allow.
func (s *Source) allowed(name string, events []event) (out []event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range events {
		if s.bounds[name] == nil {
			s.bounds[name] = bounds{}
		}
		if s.bounds[name].allows(e, time.Now()) {
			out = append(out, e)
		}
	}
	return out
}

func (s *Source) takePending(name string) []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	events := s.pending[name]
	delete(s.pending, name)
	return events
}

func (s *Source) write(ctx context.Context, about v1.ObjectReference, events []event) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	for _, e := range events {
		at := metav1.NewTime(time.Now())
		// Events on cluster-scoped objects belong to the namespace default.
		_, err := s.cfg.Client.CoreV1().Events(metav1.NamespaceDefault).Create(ctx, &v1.Event{
			ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", about.Name, at.UnixNano()+s.events.Add(1)), Namespace: metav1.NamespaceDefault},
			InvolvedObject: about,
			Type:           e.kind, Reason: e.reason, Message: eventMessage(e.message), Count: 1, FirstTimestamp: at, LastTimestamp: at,
			Source: v1.EventSource{Component: component},
		}, metav1.CreateOptions{})
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to write an event", "about", about.Kind, "name", about.Name, "reason", e.reason)
		}
	}
}

// eventMessage truncates to the length that the API server accepts for an event.
func eventMessage(message string) string {
	const most = 1024
	return strings.ToValidUTF8(message[:min(most, len(message))], "")
}
