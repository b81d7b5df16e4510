package helper

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/lifeline/helper/rules"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// apply puts a table into force. The listeners and the routing come before the rules that redirect to them, and
// what is no longer needed ends after those are gone.
func (h *helper) apply(ctx context.Context, t wire.Table) error {
	t = h.reachable(t)
	destinations, more := udpDestinations(t, rules.MaxUDP)
	if more {
		klog.FromContext(ctx).Info("Ignored UDP Services: there are too many", "most", rules.MaxUDP)
	}
	wanted := rules.Wanted{
		Cluster: t.Cluster, Local: t.Local, TCP4: h.tcp4, TCP6: h.tcp6, UDP: map[netip.AddrPort]uint16{},
	}
	for _, dst := range destinations {
		l := h.listeners[dst]
		if l == nil {
			var err error
			if l, err = h.listen(ctx, dst); err != nil {
				return h.failed(fmt.Errorf("listen for the datagrams for %s: %w", dst, err))
			}
			h.listeners[dst] = l
			h.work.Go(func() { h.take(ctx, l) })
		}
		wanted.UDP[dst] = l.port()
	}
	r := newRouting(t)
	h.routing.Store(r)
	if h.rules == nil {
		opened, err := h.cfg.Rules()
		if err != nil {
			return h.failed(err)
		}
		h.rules = opened
	}
	if err := h.rules.Apply(wanted); err != nil {
		return h.failed(err)
	}
	for dst, l := range h.listeners {
		if _, needed := wanted.UDP[dst]; !needed {
			delete(h.listeners, dst)
			l.conn.Close()
		}
	}
	listeners := h.listeners
	h.exchanges.endWhere(func(e *exchange) bool { return e.outdated(r, listeners) })
	h.setState(wire.Status{Ready: true, Rules: h.rules.Kind()})
	return nil
}

// reachable leaves out the prefixes of an IP family that the helper has no listener for.
func (h *helper) reachable(t wire.Table) wire.Table {
	unreachable := func(p netip.Prefix) bool { return p.Addr().Is4() && h.tcp4 == 0 || p.Addr().Is6() && h.tcp6 == 0 }
	t.Cluster = slices.DeleteFunc(slices.Clone(t.Cluster), unreachable)
	t.Local = slices.DeleteFunc(slices.Clone(t.Local), unreachable)
	return t
}

// failed notes why a table is not in force.
func (h *helper) failed(err error) error {
	state := wire.Status{Reason: string(rules.Failed), Message: err.Error()}
	var refused *rules.Error
	if errors.As(err, &refused) {
		state.Reason = string(refused.Reason)
	}
	h.setState(state)
	return err
}
