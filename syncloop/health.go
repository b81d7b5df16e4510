package syncloop

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host/budget"
)

// healthPeriod is the interval at which the loop asks the runtime whether it can run pods.
const healthPeriod = 5 * time.Second

// runtimeHealth is the last known health of the runtime and of the PLEG.
type runtimeHealth struct {
	mu      sync.Mutex
	known   bool
	runtime string // why the runtime cannot run pods, or empty
	network string // why pods off the host network cannot start, or empty
}

// unready returns why a pod may not start anything now, or "". A pod on the host network needs only
// the runtime.
func (h *runtimeHealth) unready(hostNetwork bool) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !h.known:
		return "the container runtime has not reported its status yet"
	case h.runtime != "":
		return h.runtime
	case !hostNetwork:
		return h.network
	}
	return ""
}

// networkFault returns why the runtime, which is ready otherwise, cannot connect a pod, or "".
func (h *runtimeHealth) networkFault() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.runtime != "" {
		return ""
	}
	return h.network
}

// watchRuntime asks at once and then every healthPeriod. While the runtime is not ready it asks
// sooner, with a back-off from 100 ms.
func (l *Loop) watchRuntime(ctx context.Context) {
	first := wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 10, Cap: healthPeriod}
	for retry := first; ctx.Err() == nil; {
		pause := healthPeriod
		if l.askRuntime(ctx) {
			retry = first
		} else {
			pause = retry.Step()
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

func (l *Loop) askRuntime(ctx context.Context) bool {
	runtime, network := "", ""
	st, err := l.cfg.Runtime.Status(ctx, false)
	switch {
	case ctx.Err() != nil:
		return false
	case err != nil:
		runtime = fmt.Sprintf("container runtime is down: %v", err)
	default:
		runtime, network = conditionsOf(st.GetStatus())
	}
	if ok, last := l.cfg.PLEG.Healthy(time.Now()); runtime == "" && !ok {
		runtime = "PLEG is not healthy: it has not relisted yet"
		if !last.IsZero() {
			runtime = fmt.Sprintf("PLEG is not healthy: pleg was last seen active %s ago", time.Since(last).Round(time.Second))
		}
	}
	h := &l.health
	h.mu.Lock()
	changed := !h.known || h.runtime != runtime || h.network != network
	h.known, h.runtime, h.network = true, runtime, network
	h.mu.Unlock()
	if !changed {
		return runtime == "" && network == ""
	}
	log := klog.FromContext(ctx)
	switch {
	case runtime != "":
		log.Error(nil, "Found the runtime not ready", "reason", runtime)
		l.cfg.RuntimeChanged(false, "KubeletNotReady", runtime)
	case network != "":
		log.Error(nil, "Found the runtime's network not ready", "reason", network)
		l.cfg.RuntimeChanged(false, "KubeletNotReady", network)
	default:
		log.Info("Found the runtime ready")
		l.cfg.RuntimeChanged(true, "KubeletReady", "kubelet is posting ready status")
		l.cfg.PLEG.Kick()
	}
	l.wakeAll()
	return runtime == "" && network == ""
}

func conditionsOf(st *runtimeapi.RuntimeStatus) (runtime, network string) {
	for _, c := range st.GetConditions() {
		if c.Status {
			continue
		}
		switch c.Type {
		case "RuntimeReady":
			runtime = budget.Text(fmt.Sprintf("container runtime is not ready: %s: %s", c.Reason, c.Message))
		case "NetworkReady":
			network = budget.Text(fmt.Sprintf("container runtime network not ready: NetworkReady=false reason:%s message:%s", c.Reason, c.Message))
		}
	}
	return runtime, network
}
