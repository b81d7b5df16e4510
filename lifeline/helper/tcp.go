package helper

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// pause waits after the kernel has failed to give a listener what arrived, as without a free file descriptor.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(100 * time.Millisecond):
	}
}

// accept serves the connections of a listener until ctx ends. It closes the listener.
func (h *helper) accept(ctx context.Context, l *net.TCPListener) error {
	defer context.AfterFunc(ctx, func() { l.Close() })()
	for {
		conn, err := l.AcceptTCP()
		switch {
		case ctx.Err() != nil:
			if err == nil {
				tcpEnd{conn}.reset()
			}
			return context.Cause(ctx)
		case err != nil:
			pause(ctx)
			continue
		}
		if h.flows.Add(1) > int64(h.cfg.MaxFlows) {
			h.flows.Add(-1)
			tcpEnd{conn}.reset()
			h.logFull.Do(func() {
				klog.FromContext(ctx).Info("Refused a connection: there are too many", "most", h.cfg.MaxFlows)
			})
			continue
		}
		h.work.Go(func() {
			defer h.flows.Add(-1)
			h.serve(ctx, conn)
		})
	}
}

// serve passes one connection on, and returns when it has ended. When ctx ends, it is reset.
func (h *helper) serve(ctx context.Context, conn *net.TCPConn) {
	defer context.AfterFunc(ctx, func() { tcpEnd{conn}.reset() })()
	dst, err := h.cfg.original(conn)
	if err != nil {
		tcpEnd{conn}.reset()
		return
	}
	flow := wire.Flow{Protocol: wire.TCP, Src: plain(conn.RemoteAddr()), Dst: dst}
	log := klog.FromContext(ctx).V(4).WithValues("source", flow.Src, "destination", flow.Dst)
	r := h.routing.Load()
	if r == nil {
		tcpEnd{conn}.reset()
		return
	}
	if r.isDNS(flow) {
		h.serveDNS(ctx, conn, flow)
		return
	}
	other, err := h.connect(ctx, r, flow)
	if err != nil {
		tcpEnd{conn}.reset()
		log.Info("Refused a connection", "reason", err.Error())
		return
	}
	defer context.AfterFunc(ctx, other.reset)()
	if err := join(tcpEnd{conn}, other); err != nil {
		log.Info("Stopped a connection", "reason", err.Error())
	}
}

// connect opens the other end of a flow. The error is a wire.Error, or why no backend was reached.
func (h *helper) connect(ctx context.Context, r *routing, flow wire.Flow) (end, error) {
	switch v := r.decide(flow); {
	case v.refusal != 0:
		return nil, wire.Error{Refusal: v.refusal}
	case v.service != nil:
		return h.dial(ctx, v.service, flow.Src.Addr())
	}
	s := h.session()
	if s == nil {
		return nil, wire.Error{Refusal: wire.Unreachable}
	}
	stream, err := s.Open(ctx, flow)
	if err != nil {
		return nil, err
	}
	return streamEnd{stream}, nil
}

// dial connects to a backend on this host: the next one, if one refuses.
func (h *helper) dial(ctx context.Context, s *target, source netip.Addr) (end, error) {
	var failed error
	backends := h.chooser.order(s, source, time.Now())
	for _, backend := range backends[:min(len(backends), maxDials)] {
		dialer := net.Dialer{Timeout: dialTimeout}
		c, err := dialer.DialContext(ctx, "tcp", backend.String())
		if err != nil {
			failed = errors.Join(failed, err)
			continue
		}
		h.chooser.keep(s, source, backend, time.Now())
		h.served.Add(1)
		return tcpEnd{c.(*net.TCPConn)}, nil
	}
	return nil, failed
}

// plain is an address of a socket, without the form that an IPv4 address has in one of IPv6.
func plain(a net.Addr) netip.AddrPort {
	p := a.(interface{ AddrPort() netip.AddrPort }).AddrPort()
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}
