package mux

import (
	"encoding/binary"
	"hash/fnv"
	"io"
	"sync"

	"github.com/bowline-k8s/bowline/lifeline/internal/queue"
	"github.com/bowline-k8s/bowline/lifeline/pipe"
	"github.com/bowline-k8s/bowline/lifeline/wire"
	"github.com/bowline-k8s/bowline/notify"
)

// batchSize is the most that a channel writes at once.
const batchSize = 32 << 10

// mostRefusals is how many refusals wait for the pipe. An end with the same limit of flows never causes so many.
const mostRefusals = 4 * DefaultFlows

type batch [batchSize]byte

// batches are taken while there is something to read or to write: an idle session has none.
var batches = sync.Pool{New: func() any { return new(batch) }}

// channel has the streams of one pipe. Session.mu guards what changes.
type channel struct {
	session *Session
	pipe    *pipe.Pipe
	work    notify.Signal // wakes the writer

	streams  map[uint64]*Stream
	next     uint64    // number of the next stream that this end opens: odd at the exit
	last     uint64    // number of the last stream that the other end opened
	ready    []*Stream // have something to send, and take turns
	refusals []refusal // of streams that this end did not take
}

type refusal struct {
	stream uint64
	why    wire.Refusal
}

func newChannel(s *Session, p *pipe.Pipe) *channel {
	c := &channel{session: s, pipe: p, work: notify.New(), streams: map[uint64]*Stream{}, next: 2}
	if s.exit {
		c.next = 1
	}
	return c
}

// spread turns a flow into a number that chooses its pipe.
func spread(f wire.Flow) uint64 {
	h := fnv.New64a()
	h.Write(appendFlow(make([]byte, 0, flowMost), f))
	return h.Sum64()
}

// add makes a stream. Session.mu is held.
func (c *channel) add(id uint64, f wire.Flow) *Stream {
	st := newStream(c, id, f)
	c.streams[id] = st
	c.session.flows++
	return st
}

// remove forgets a stream. Session.mu is held.
func (c *channel) remove(st *Stream) {
	if c.streams[st.id] == st {
		delete(c.streams, st.id)
		c.session.flows--
	}
}

// read applies the frames of the pipe.
func (c *channel) read() error { return frames(c.pipe, c.frame) }

// frames passes each frame that r has to apply, until an error.
func frames(r io.Reader, apply func(r io.Reader, h header) error) error {
	head := make([]byte, headerSize)
	for {
		if _, err := io.ReadFull(r, head); err != nil {
			return ended(err)
		}
		h, err := parseHeader(head)
		if err != nil {
			return err
		}
		if err := apply(r, h); err != nil {
			return err
		}
	}
}

// frame applies a frame, whose payload it reads.
func (c *channel) frame(r io.Reader, h header) error {
	if h.kind >= kindDatagram {
		return violation("a frame of the kind %d among streams", h.kind)
	}
	buf := batches.Get().(*batch)
	defer batches.Put(buf)
	payload := buf[:h.length]
	if _, err := io.ReadFull(r, payload); err != nil {
		return ended(err)
	}
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	if c.session.err != nil {
		return c.session.err
	}
	if h.kind == kindOpen {
		return c.opened(h.stream, payload)
	}
	st := c.streams[h.stream]
	if st == nil {
		return c.unknown(h)
	}
	return st.apply(h, payload)
}

// ended is the error for the end of a pipe.
func ended(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return ErrEnded
	}
	return err
}

// unknown accepts a frame that was on its way when its stream ended here.
func (c *channel) unknown(h header) error {
	known := h.stream <= c.last
	if h.stream%2 == c.next%2 {
		known = h.stream < c.next
	}
	if !known {
		return violation("a frame of the kind %d of stream %d, which was not opened", h.kind, h.stream)
	}
	return nil
}

// opened takes a stream that the other end opens, or refuses it.
func (c *channel) opened(id uint64, payload []byte) error {
	f, rest, err := parseFlow(payload)
	s := c.session
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return violation("a flow with %d more bytes", len(rest))
	case id <= c.last || id%2 == c.next%2:
		return violation("stream %d after %d", id, c.last)
	}
	c.last = id
	if s.flows >= s.cfg.Flows || len(s.accepted) >= s.cfg.Flows {
		if len(c.refusals) >= mostRefusals {
			return violation("more flows than this end can refuse")
		}
		s.refused++
		c.refusals = append(c.refusals, refusal{id, wire.Exhausted})
		c.work.Send()
		return nil
	}
	s.accepted = append(s.accepted, c.add(id, f))
	s.acceptable.Send()
	return nil
}

// write writes what the streams have to send, in turns.
func (c *channel) write() error {
	for {
		if err := c.writeReady(); err != nil {
			return err
		}
		select {
		case <-c.work:
		case <-c.session.done:
			return c.session.Err()
		}
	}
}

// writeReady writes until no stream is ready.
func (c *channel) writeReady() error {
	buf := batches.Get().(*batch)
	defer batches.Put(buf)
	for {
		frames := c.collect(buf[:0])
		if len(frames) == 0 {
			return nil
		}
		if _, err := c.pipe.Write(frames); err != nil {
			return ended(err)
		}
	}
}

// collect appends frames to b, as far as its capacity permits.
func (c *channel) collect(b []byte) []byte {
	const least = headerSize + flowMost + headerSize + 4 + 2*headerSize // all but the data of one stream
	c.session.mu.Lock()
	defer c.session.mu.Unlock()
	for len(c.refusals) > 0 && cap(b)-len(b) >= least {
		r := c.refusals[0]
		c.refusals = c.refusals[1:]
		b = append(header{kindReset, 1, r.stream}.append(b), byte(r.why))
	}
	for len(c.ready) > 0 && cap(b)-len(b) >= least {
		st := c.ready[0]
		c.ready[0] = nil
		c.ready = c.ready[1:]
		st.queued = false
		b = st.frames(b)
		st.enqueue() // behind the others, if there is more
	}
	return b
}

// frames appends what the stream has to send, at most one quantum of data. Session.mu is held.
func (st *Stream) frames(b []byte) []byte {
	if st.announce {
		st.announce = false
		at := len(b)
		b = appendFlow(header{kindOpen, 0, st.id}.append(b), st.flow)
		header{kindOpen, len(b) - at - headerSize, st.id}.append(b[at:at])
	}
	if st.resetDue != 0 {
		b = append(header{kindReset, 1, st.id}.append(b), byte(st.resetDue))
		st.resetDue = 0
		st.channel.remove(st)
		return b
	}
	if n := st.grant(); n > 0 {
		b = binary.BigEndian.AppendUint32(header{kindCredit, 4, st.id}.append(b), uint32(n))
		st.allowed += uint64(n)
	}
	if n := min(st.sendable(), quantum, cap(b)-len(b)-3*headerSize); n > 0 {
		b = append(header{kindData, n, st.id}.append(b), st.pending[:n]...)
		st.credit -= n
		if st.pending = st.pending[n:]; len(st.pending) == 0 {
			st.pending = nil
			st.writable.Send()
		}
	}
	if st.finDue() {
		b = header{kindFin, 0, st.id}.append(b)
		st.sentFin = true
	}
	if st.stopDue() {
		b = header{kindStop, 0, st.id}.append(b)
		st.sentStop = true
	}
	st.settle()
	return b
}

// discarded returns the memory of a queue.
func discarded(q *queue.Queue) { q.Discard(q.End()) }
