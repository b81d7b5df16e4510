package node

import (
	"context"
	"errors"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host/logind"
	"github.com/bowline-k8s/bowline/syncloop/shutdown"
	"github.com/bowline-k8s/bowline/syncloop/shutdown/order"
)

// buildShutdown creates the graceful node shutdown, which ends pods before the host goes down, if
// it is configured.
func (n *Node) buildShutdown(context.Context) (err error) {
	periods := shutdownPeriods(n.cfg)
	if order.Total(periods) == 0 {
		return nil
	}
	n.parts.shutdown, err = shutdown.New(shutdown.Config{
		Open: func(ctx context.Context) (shutdown.Session, error) {
			s, err := logind.Open(ctx, logind.Config{
				Machine: n.host, Who: "bowline", Why: "the pods of node " + n.name + " are ended first",
				Need: order.Total(periods), Margin: shutdown.Margin,
			})
			if err != nil {
				return nil, err
			}
			return s, nil
		},
		Absent: func(err error) bool { return errors.Is(err, logind.ErrNone) },
		BootID: func(ctx context.Context) (string, error) {
			f, err := n.host.Facts(ctx)
			return f.BootID, err
		},
		Pods: shutdownPods{n}, Periods: periods,
		Event: n.node.RecordEvent, Changed: n.ready.ShuttingDown,
		Began: n.metrics.parts.ShuttingDown, Ended: n.metrics.parts.ShutDown,
	})
	return err
}

// shutdownPeriods returns the configured periods; none means that pods get no time.
func shutdownPeriods(cfg *config.Host) []order.Period {
	var out []order.Period
	for _, p := range cfg.ShutdownGracePeriodByPodPriority {
		out = append(out, order.Period{Priority: p.Priority, Time: time.Duration(p.ShutdownGracePeriodSeconds) * time.Second})
	}
	if len(out) > 0 {
		return out
	}
	return order.Simple(cfg.ShutdownGracePeriod.Duration, cfg.ShutdownGracePeriodCriticalPods.Duration)
}

// shutdownPods is the sync loop's pods as the shutdown manager sees them.
type shutdownPods struct{ *Node }

func (g shutdownPods) Known() bool                    { return g.loop.AllKnown() }
func (g shutdownPods) Unended() []*v1.Pod             { return g.loop.Unended() }
func (g shutdownPods) End(p *v1.Pod, d time.Duration) { g.loop.EndForShutdown(p.UID, d) }
func (g shutdownPods) Over(p *v1.Pod) bool            { return g.loop.State(p.UID).Released() }
func (g shutdownPods) Reported(p *v1.Pod) bool        { return !g.loop.State(p.UID).Managed }
func (g shutdownPods) Revive() bool                   { return g.loop.Revive() }
