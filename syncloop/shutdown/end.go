package shutdown

import (
	"context"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/syncloop/shutdown/order"
)

// ending is one attempt to end the pods.
type ending struct {
	cancel  context.CancelFunc
	ended   chan struct{}
	noticed bool
}

func (m *Manager) start(ctx context.Context, held bool) *ending {
	ctx, cancel := context.WithCancel(ctx)
	e := &ending{cancel: cancel, ended: make(chan struct{})}
	if !held {
		klog.FromContext(ctx).Info("Stopping pods without an inhibitor: the shutdown had already begun")
	}
	go func() {
		defer budget.From(ctx).Recover("stop the pods before the shutdown")
		defer close(e.ended)
		m.cfg.Began(time.Now())
		m.endAll(ctx)
		m.cfg.Ended(time.Now())
	}()
	return e
}

// end cancels the attempt and waits until it has stopped.
func (e *ending) end() {
	if e != nil {
		e.cancel()
		<-e.ended
	}
}

// done returns a channel that is closed when the attempt has ended; nil once that was noticed.
func (e *ending) done() <-chan struct{} {
	if e == nil || e.noticed {
		return nil
	}
	return e.ended
}

// endAll ends the pods, group by group, and gives the API server time to receive their statuses.
func (m *Manager) endAll(ctx context.Context) {
	log := klog.FromContext(ctx)
	began := time.Now()
	total := order.Total(m.cfg.Periods)
	if !await(ctx, began.Add(total), m.cfg.Pods.Known) {
		log.Error(nil, "Skipped graceful termination: the pods are not known yet", "waited", total)
		return
	}
	var ended []*v1.Pod
	for _, g := range order.Plan(m.cfg.Periods, m.cfg.Pods.Unended()) {
		if ctx.Err() != nil {
			return
		}
		log.Info("Stopping pods before the shutdown", "priority", g.Priority, "pods", len(g.Pods), "time", g.Time)
		var pods []*v1.Pod
		for _, e := range g.Pods {
			m.cfg.Pods.End(e.Pod, e.Grace)
			pods = append(pods, e.Pod)
		}
		if !await(ctx, time.Now().Add(g.Time), func() bool { return all(pods, m.cfg.Pods.Over) }) && ctx.Err() == nil {
			log.Error(nil, "Timed out waiting for pods to stop", "priority", g.Priority, "time", g.Time, "pods", missing(pods, m.cfg.Pods.Over))
		}
		ended = append(ended, pods...)
	}
	by := time.Now().Add(telling)
	if last := began.Add(total + Margin); last.Before(by) {
		by = last
	}
	if !await(ctx, by, func() bool { return all(ended, m.cfg.Pods.Reported) }) && ctx.Err() == nil {
		log.Error(nil, "Timed out waiting for final pod statuses", "pods", missing(ended, m.cfg.Pods.Reported))
	}
}

// missing returns, for a log entry, the pods for which is returns false.
func missing(pods []*v1.Pod, is func(*v1.Pod) bool) any {
	return klog.KObjSlice(slices.DeleteFunc(slices.Clone(pods), is))
}

func all(pods []*v1.Pod, is func(*v1.Pod) bool) bool {
	for _, p := range pods {
		if !is(p) {
			return false
		}
	}
	return true
}

// await polls is until it returns true, the deadline by passes, or ctx ends.
func await(ctx context.Context, by time.Time, is func() bool) bool {
	for {
		switch {
		case ctx.Err() != nil:
			return false
		case is():
			return true
		case !time.Now().Before(by):
			return false
		}
		select {
		case <-ctx.Done():
		case <-time.After(min(glance, time.Until(by))):
		}
	}
}
