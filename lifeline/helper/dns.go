package helper

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/helper/dnscache"
	"github.com/bowline-k8s/bowline/lifeline/wire"
)

var errNoSession = errors.New("there is no session with an exit")

// takeQuestion answers a DNS question by UDP. One that comes while too many wait is dropped.
func (h *helper) takeQuestion(ctx context.Context, l *udpListener, d datagram, flow wire.Flow) {
	select {
	case h.asking <- struct{}{}:
	default:
		return
	}
	msg := bytes.Clone(d.payload)
	h.work.Go(func() {
		defer func() { <-h.asking }()
		ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
		defer cancel()
		if answer, err := h.cache.Answer(ctx, flow, msg, dnscache.MaxMessage); err == nil {
			l.answer(d.from, d.to, answer)
		}
	})
}

// serveDNS answers DNS questions by TCP, one after the other. When ctx ends, the caller resets the connection.
func (h *helper) serveDNS(ctx context.Context, conn *net.TCPConn, flow wire.Flow) {
	defer conn.Close()
	for ctx.Err() == nil {
		if err := conn.SetDeadline(time.Now().Add(dnsIdle)); err != nil {
			return
		}
		msg, err := readMessage(conn)
		if err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, dnsTimeout)
		answer, err := h.cache.Answer(ctx, flow, msg, dnscache.MaxMessage-1)
		cancel()
		if err != nil {
			return
		}
		if _, err := conn.Write(withLength(answer)); err != nil {
			return
		}
	}
}

// readMessage reads a DNS message that follows its length (RFC 1035, section 4.2.2).
func readMessage(r io.Reader) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	msg := make([]byte, binary.BigEndian.Uint16(length[:]))
	_, err := io.ReadFull(r, msg)
	return msg, err
}

func withLength(msg []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(msg))), msg...)
}

// ask asks a question of the cache: a backend of the cluster's DNS on this host, if there is one, or the exit.
func (h *helper) ask(ctx context.Context, asked wire.Flow, query []byte) ([]byte, error) {
	flow := wire.Flow{Protocol: wire.UDP, Src: asked.Src, Dst: asked.Dst}
	switch v := h.routing.Load().decide(flow); {
	case v.refusal != 0:
		return nil, wire.Error{Refusal: v.refusal}
	case v.service != nil:
		return h.askBackend(ctx, v.service, flow, query)
	}
	s := h.session()
	if s == nil {
		return nil, errNoSession
	}
	return h.questions.ask(ctx, s, flow, query)
}

// askBackend asks the backends in turn.
func (h *helper) askBackend(ctx context.Context, s *target, flow wire.Flow, query []byte) ([]byte, error) {
	var failed error
	for _, backend := range h.chooser.order(s, flow.Src.Addr(), time.Now()) {
		answer, err := askAt(ctx, "udp", backend, query)
		if err == nil && truncated(answer) {
			answer, err = askAt(ctx, "tcp", backend, query)
		}
		if err == nil {
			h.served.Add(1)
			return answer, nil
		}
		if failed = errors.Join(failed, err); ctx.Err() != nil {
			break
		}
	}
	return nil, failed
}

// askAt asks one server on this host.
func askAt(ctx context.Context, network string, server netip.AddrPort, query []byte) ([]byte, error) {
	c, err := (&net.Dialer{Timeout: askAgain}).DialContext(ctx, network, server.String())
	if err != nil {
		return nil, err
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	if err := c.SetDeadline(time.Now().Add(askAgain)); err != nil {
		return nil, err
	}
	query = bytes.Clone(query)
	binary.BigEndian.PutUint16(query, uint16(rand.Uint32()))
	if network == "tcp" {
		if _, err := c.Write(withLength(query)); err != nil {
			return nil, err
		}
		return readMessage(c)
	}
	if _, err := c.Write(query); err != nil {
		return nil, err
	}
	buffer := make([]byte, dnscache.MaxMessage)
	for {
		n, err := c.Read(buffer)
		if err != nil {
			return nil, err
		}
		if n >= 2 && bytes.Equal(buffer[:2], query[:2]) {
			return bytes.Clone(buffer[:n]), nil
		}
	}
}

// truncated reports whether a DNS message has the bit TC.
func truncated(msg []byte) bool { return len(msg) > 2 && msg[2]&2 != 0 }

// questions are those that the exit has not answered. Its methods may be called at the same time.
type questions struct {
	mu      sync.Mutex
	waiting map[uint16]chan []byte // by ID
}

// ask asks the exit, a second time if the question or its answer seems to be lost.
func (q *questions) ask(ctx context.Context, s wire.Session, flow wire.Flow, query []byte) ([]byte, error) {
	id, answered := q.register()
	defer q.forget(id)
	query = bytes.Clone(query)
	binary.BigEndian.PutUint16(query, id)
	again := time.NewTicker(askAgain)
	defer again.Stop()
	for {
		if err := s.Send(wire.Datagram{Flow: flow, Payload: query}); err != nil && !errors.Is(err, wire.ErrFull) {
			return nil, fmt.Errorf("ask the exit: %w", err)
		}
		select {
		case answer := <-answered:
			return answer, nil
		case <-s.Done():
			return nil, errNoSession
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-again.C:
		}
	}
}

// register chooses an ID. The cache has fewer questions at the same time than there are IDs.
func (q *questions) register() (id uint16, answered chan []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.waiting == nil {
		q.waiting = map[uint16]chan []byte{}
	}
	for {
		id = uint16(rand.Uint32())
		if q.waiting[id] == nil {
			answered = make(chan []byte, 1)
			q.waiting[id] = answered
			return id, answered
		}
	}
}

func (q *questions) forget(id uint16) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.waiting, id)
}

// deliver takes an answer. Without a question, or for one that has its answer, it is dropped.
func (q *questions) deliver(answer []byte) {
	if len(answer) < 2 {
		return
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case q.waiting[binary.BigEndian.Uint16(answer)] <- answer:
	default:
	}
}
