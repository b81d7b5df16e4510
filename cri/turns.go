package cri

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
)

// Limits on how many replies of a runtime may be in progress at once, as each may be as large as
// its budget allows.
const (
	largeAtOnce = 2  // full lists
	smallAtOnce = 16 // statuses, and lists of one pod
	// bulky is the size, in bytes, above which replies are decoded one at a time.
	bulky = 64 << 10
)

// turns limits concurrent calls whose replies may be large.
type turns struct {
	large, small chan struct{}
	decode       chan struct{}
}

func newTurns() turns {
	return turns{make(chan struct{}, largeAtOnce), make(chan struct{}, smallAtOnce), make(chan struct{}, 1)}
}

// take waits for a call's turn. Health calls do not wait.
func (t turns) take(ctx context.Context, m method) (release func(), err error) {
	var places chan struct{}
	switch {
	case !m.observed || m.health:
		return func() {}, nil
	case m.size == budget.ReplyBytes:
		places = t.large
	default:
		places = t.small
	}
	select {
	case places <- struct{}{}:
		// If both cases are ready, select takes either. The client must not send a call whose
		// caller has returned.
		if err := ctx.Err(); err != nil {
			<-places
			return nil, err
		}
		return func() { <-places }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// asked returns the method with the budget of this request: a list of one pod has the budget of a
// status.
func (m method) asked(req any) method {
	one := false
	switch r := req.(type) {
	case *runtimeapi.ListPodSandboxRequest:
		one = r.GetFilter().GetId() != "" || r.GetFilter().GetLabelSelector()[pod.LabelPodUID] != ""
	case *runtimeapi.ListContainersRequest:
		f := r.GetFilter()
		one = f.GetId() != "" || f.GetPodSandboxId() != "" || f.GetLabelSelector()[pod.LabelPodUID] != ""
	case *runtimeapi.ListContainerStatsRequest:
		one = r.GetFilter().GetId() != "" || r.GetFilter().GetPodSandboxId() != ""
	}
	if one {
		m.size = budget.StatusBytes
	}
	return m
}
