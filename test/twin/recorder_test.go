package twin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// recorder keeps what a watch sees of a node's namespace, by scenario.
type recorder struct {
	node *node

	mu      sync.Mutex
	entries map[string][]Entry
	changed chan struct{} // closed and replaced with each entry
	err     error         // the watch has ended
}

// record watches the namespace's pods and events from now on, until ctx ends.
func record(ctx context.Context, client kubernetes.Interface, n *node) (*recorder, error) {
	r := &recorder{node: n, entries: map[string][]Entry{}, changed: make(chan struct{})}
	pods, err := client.CoreV1().Pods(n.namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return nil, err
	}
	// Both watches start at one moment, before any scenario.
	from := metav1.ListOptions{ResourceVersion: pods.ResourceVersion}
	podWatch, err := client.CoreV1().Pods(n.namespace).Watch(ctx, from)
	if err != nil {
		return nil, err
	}
	eventWatch, err := client.CoreV1().Events(n.namespace).Watch(ctx, from)
	if err != nil {
		return nil, err
	}
	for _, w := range []watch.Interface{podWatch, eventWatch} {
		go func() {
			for e := range w.ResultChan() {
				r.take(e)
			}
			r.end(errors.New("the watch has ended"))
		}()
	}
	return r, nil
}

func (r *recorder) take(e watch.Event) {
	entry, name := Entry{At: time.Now()}, ""
	switch o := e.Object.(type) {
	case *v1.Pod:
		o.ManagedFields = nil
		entry.Pod, entry.Deleted, name = o, e.Type == watch.Deleted, o.Name
	case *v1.Event:
		if e.Type == watch.Deleted {
			return
		}
		o.ManagedFields = nil
		entry.Event, name = o, o.InvolvedObject.Name
	default:
		r.end(fmt.Errorf("the watch says %s: %v", e.Type, e.Object))
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	name = strings.TrimSuffix(name, "-"+r.node.name) // a mirror pod
	r.entries[name] = append(r.entries[name], entry)
	r.tell()
}

func (r *recorder) end(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err == nil {
		r.err = err
		r.tell()
	}
}

func (r *recorder) tell() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// seen returns the entries of a scenario, and a channel that is closed when there are more of any
// scenario.
func (r *recorder) seen(scenario string) ([]Entry, <-chan struct{}, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.entries[scenario], r.changed, r.err
}

var errTooLate = errors.New("not within its time")

// until waits until a condition holds for the entries of a scenario.
func (r *recorder) until(ctx context.Context, scenario, what string, timeout time.Duration, condition func([]Entry) bool) error {
	end := time.NewTimer(timeout)
	defer end.Stop()
	for {
		entries, more, err := r.seen(scenario)
		if condition(entries) {
			return nil
		}
		if err != nil {
			return err
		}
		select {
		case <-more:
		case <-end.C:
			return fmt.Errorf("%s: %w: %s", what, errTooLate, timeout)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// quiet waits until a scenario has had no new entry for a while, but no longer than most.
func (r *recorder) quiet(ctx context.Context, scenario string, span, most time.Duration) error {
	end := time.NewTimer(most)
	defer end.Stop()
	for {
		entries, more, err := r.seen(scenario)
		if err != nil {
			return err
		}
		still := time.NewTimer(span)
		defer still.Stop()
		for n := len(entries); len(entries) == n; {
			select {
			case <-more: // of any scenario
				if entries, more, err = r.seen(scenario); err != nil {
					return err
				}
			case <-still.C:
				return nil
			case <-end.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// recording is the recording of a scenario so far.
func (r *recorder) recording(scenario string) Recording {
	entries, _, _ := r.seen(scenario)
	return Recording{Scenario: scenario, Node: r.node.name, HostIP: r.node.ip, Namespace: r.node.namespace, Entries: entries}
}

// latest is the last version of the pod; nil once it is gone, or before it exists.
func latest(entries []Entry) *v1.Pod {
	for i := len(entries) - 1; i >= 0; i-- {
		if e := entries[i]; e.Pod != nil {
			if e.Deleted {
				return nil
			}
			return e.Pod
		}
	}
	return nil
}
