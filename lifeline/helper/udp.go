package helper

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/wire"
)

// udpListener takes the datagrams for one destination.
type udpListener struct {
	dst  netip.AddrPort
	conn *net.UDPConn
	raw  syscall.RawConn
}

// listen makes the listener of a destination.
func (h *helper) listen(ctx context.Context, dst netip.AddrPort) (*udpListener, error) {
	for _, at := range h.cfg.Listen {
		if at.Is4() != dst.Addr().Is4() {
			continue
		}
		conn, err := listenUDP(ctx, at)
		if err != nil {
			return nil, err
		}
		raw, err := conn.SyscallConn()
		if err != nil {
			return nil, errors.Join(err, conn.Close())
		}
		return &udpListener{dst, conn, raw}, nil
	}
	return nil, errors.New("the helper listens at no address of that IP family")
}

func (l *udpListener) port() uint16 { return plain(l.conn.LocalAddr()).Port() }

// answer sends a datagram to a client, from the address to which its own were redirected. One that cannot be
// sent is lost, as UDP may lose it.
func (l *udpListener) answer(to netip.AddrPort, from netip.Addr, payload []byte) {
	_, _, _ = l.conn.WriteMsgUDPAddrPort(payload, sentFrom(from), to)
}

// take takes datagrams until ctx ends, or the listener is closed.
func (h *helper) take(ctx context.Context, l *udpListener) {
	defer context.AfterFunc(ctx, func() { l.conn.Close() })()
	for {
		d, err := receive(l.raw)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			pause(ctx)
			continue
		}
		flow := wire.Flow{Protocol: wire.UDP, Src: d.from, Dst: l.dst}
		if r := h.routing.Load(); r != nil && r.isDNS(flow) {
			h.takeQuestion(ctx, l, d, flow)
		} else if r != nil {
			h.forward(ctx, r, l, d, flow)
		}
		d.release()
	}
}

// forward passes a datagram on: to the backend of its exchange, or to the exit. A flow has one listener, and so
// one caller of forward at a time.
func (h *helper) forward(ctx context.Context, r *routing, l *udpListener, d datagram, flow wire.Flow) {
	e := h.exchanges.get(flow, time.Now())
	if e == nil {
		e = &exchange{flow: flow, via: l, local: d.to, used: time.Now()}
		if !h.begin(ctx, r, e) {
			return
		}
	}
	if e.backend != nil {
		if _, err := e.backend.Write(d.payload); errors.Is(err, syscall.ECONNREFUSED) {
			h.exchanges.end(e) // the next datagram has another backend
		}
		return
	}
	if s := h.session(); s != nil {
		_ = s.Send(wire.Datagram{Flow: flow, Payload: bytes.Clone(d.payload)}) // or it is lost
	}
}

// begin begins an exchange. It reports whether its datagrams go anywhere.
func (h *helper) begin(ctx context.Context, r *routing, e *exchange) bool {
	v := r.decide(e.flow)
	if v.refusal != 0 {
		return false
	}
	if v.service != nil {
		source := e.flow.Src.Addr()
		backend := h.chooser.order(v.service, source, time.Now())[0]
		c, err := (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "udp", backend.String())
		if err != nil {
			return false
		}
		h.chooser.keep(v.service, source, backend, time.Now())
		e.backend, e.at = c.(*net.UDPConn), backend
	}
	if !h.exchanges.add(e) {
		if e.backend != nil {
			e.backend.Close()
		}
		return false
	}
	if e.backend != nil {
		h.served.Add(1)
		h.work.Go(func() { h.answers(ctx, e) })
	}
	return true
}

// answers passes on what the backend of an exchange answers, until the exchange ends.
func (h *helper) answers(ctx context.Context, e *exchange) {
	defer h.exchanges.end(e)
	defer context.AfterFunc(ctx, func() { e.backend.Close() })()
	raw, err := e.backend.SyscallConn()
	if err != nil {
		return
	}
	for {
		d, err := receive(raw)
		if err != nil {
			return
		}
		h.exchanges.get(e.flow, time.Now())
		e.via.answer(e.flow.Src, e.local, d.payload)
		d.release()
	}
}

// deliver passes on a datagram from the exit. Without an exchange for it, it is dropped.
func (h *helper) deliver(d wire.Datagram) {
	if r := h.routing.Load(); r != nil && r.isDNS(d.Flow) {
		h.questions.deliver(d.Payload)
		return
	}
	if e := h.exchanges.get(d.Flow, time.Now()); e != nil {
		e.via.answer(e.flow.Src, e.local, d.Payload)
	}
}
