package mux

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/internal/deadline"
	"github.com/bowline-k8s/bowline/lifeline/internal/queue"
	"github.com/bowline-k8s/bowline/lifeline/wire"
	"github.com/bowline-k8s/bowline/notify"
)

// Stream is one end of a stream. It implements wire.Stream. Its reset, and the end of the session, are a
// wire.Error; use after Close or Reset is net.ErrClosed.
//
// Each half is open until its writer's FIN or its reader's STOP; the stream counts until both are closed and
// its user has called Close, or until a reset:
//
//	out: open ── CloseWrite, Close: FIN ──▶ closed      in: open ── FIN arrives ──▶ at its end
//	          └─ STOP arrives: Write fails ──▶ closed           └─ Close: STOP ──▶ closed
type Stream struct {
	channel *channel
	id      uint64
	flow    wire.Flow

	readable, writable    notify.Signal
	over                  chan struct{} // closed with err
	writing               chan struct{} // held by the one Write that has pending
	readUntil, writeUntil *deadline.Deadline

	// Session.mu guards the rest.
	err      error        // why the user cannot use it any more
	queued   bool         // is in channel.ready
	announce bool         // OPEN was not sent
	resetDue wire.Refusal // RESET is to be sent

	pending []byte // of the current Write, not sent
	credit  int    // bytes that the other end lets this one send
	ending  bool   // no more Write
	sentFin bool
	stopped bool // STOP arrived

	in       queue.Queue
	allowed  uint64 // the other end may send the bytes before this offset
	window   int    // how far allowed may be ahead of the reader
	grown    uint64 // offset of the reader when window grew
	fin      bool   // FIN arrived
	closed   bool   // by the user, who reads no more
	sentStop bool
}

var _ wire.Stream = (*Stream)(nil)

func newStream(c *channel, id uint64, f wire.Flow) *Stream {
	st := &Stream{channel: c, id: id, flow: f, readable: notify.New(), writable: notify.New(), over: make(chan struct{}),
		writing: make(chan struct{}, 1), readUntil: deadline.New(), writeUntil: deadline.New(),
		credit: initialCredit, allowed: initialCredit, window: min(initialCredit, c.session.cfg.MaxCredit)}
	st.in.Charge = c.session.charge
	return st
}

// Read returns bytes of the other end, and io.EOF after its CloseWrite or Close.
func (st *Stream) Read(b []byte) (int, error) {
	for {
		past := st.readUntil.Passed()
		if isClosed(past) {
			return 0, os.ErrDeadlineExceeded
		}
		n, wait, err := st.tryRead(b)
		if !wait {
			return n, err
		}
		select {
		case <-st.readable:
		case <-st.over:
		case <-past:
		}
	}
}

func (st *Stream) tryRead(b []byte) (n int, wait bool, err error) {
	st.channel.session.mu.Lock()
	defer st.channel.session.mu.Unlock()
	switch {
	case st.err != nil:
		return 0, false, st.err
	case len(b) == 0:
		return 0, false, nil
	case st.in.Len() > 0:
		n = st.in.Read(b)
		st.grow()
		st.enqueue()
		if st.in.Len() > 0 || st.fin {
			st.readable.Send()
		}
		return n, false, nil
	case st.fin:
		st.readable.Send()
		return 0, false, io.EOF
	}
	return 0, true, nil
}

// Write returns when all of b is on its way, in the order of the stream. After the other end's Close it fails
// with wire.Broken.
func (st *Stream) Write(b []byte) (int, error) {
	past := st.writeUntil.Passed()
	if isClosed(past) {
		return 0, os.ErrDeadlineExceeded
	}
	select {
	case st.writing <- struct{}{}:
		defer func() { <-st.writing }()
	case <-past:
		return 0, os.ErrDeadlineExceeded
	case <-st.over:
	}
	if err := st.offer(b); err != nil || len(b) == 0 {
		return 0, err
	}
	for {
		past := st.writeUntil.Passed()
		select {
		case <-st.writable:
		case <-st.over:
		case <-past:
		}
		if left, err := st.written(isClosed(past)); left == 0 || err != nil {
			return len(b) - left, err
		}
	}
}

// offer makes b pending, if the stream can be written.
func (st *Stream) offer(b []byte) error {
	st.channel.session.mu.Lock()
	defer st.channel.session.mu.Unlock()
	if err := st.writeError(); err != nil {
		return err
	}
	st.pending = b
	select {
	case <-st.writable: // of the last Write
	default:
	}
	st.enqueue()
	return nil
}

func (st *Stream) writeError() error {
	switch {
	case st.err != nil:
		return st.err
	case st.ending:
		return net.ErrClosed
	case st.stopped:
		return wire.Error{Refusal: wire.Broken}
	}
	return nil
}

// written returns how much of the current Write is not sent. With an error it is taken back.
func (st *Stream) written(late bool) (left int, err error) {
	st.channel.session.mu.Lock()
	defer st.channel.session.mu.Unlock()
	if left = len(st.pending); left == 0 {
		return 0, nil
	}
	if err = st.writeError(); err == nil && late {
		err = os.ErrDeadlineExceeded
	}
	if err != nil {
		st.pending = nil
	}
	return left, err
}

// CloseWrite ends the direction to the other end, which reads io.EOF after all that was written.
func (st *Stream) CloseWrite() error {
	st.channel.session.mu.Lock()
	defer st.channel.session.mu.Unlock()
	if st.err != nil {
		return st.err
	}
	st.shutWrite()
	return nil
}

// shutWrite lets a Write that is in progress fail.
func (st *Stream) shutWrite() {
	st.ending = true
	st.writable.Send()
	st.enqueue()
}

// Close ends both directions in order: the other end reads all that was written, and its Write fails.
func (st *Stream) Close() error {
	st.channel.session.mu.Lock()
	defer st.channel.session.mu.Unlock()
	if st.closed {
		return nil
	}
	st.closed = true
	if st.err != nil {
		return nil
	}
	st.end(net.ErrClosed)
	st.shutWrite()
	st.settle()
	return nil
}

// Reset ends both directions, and says why. What has not been delivered is discarded at both ends.
func (st *Stream) Reset(why wire.Refusal) {
	st.channel.session.mu.Lock()
	defer st.channel.session.mu.Unlock()
	st.reset(why, net.ErrClosed)
}

// reset is Reset, also after Close; err is for the user. The stream counts until RESET is sent.
func (st *Stream) reset(why wire.Refusal, err error) {
	if st.channel.streams[st.id] != st || st.resetDue != 0 {
		return
	}
	st.end(err)
	if st.announce { // the other end has never heard of it
		st.announce = false
		st.channel.remove(st)
		return
	}
	st.resetDue = why
	st.enqueue()
}

// fail ends the stream without a word to the other end, which knows.
func (st *Stream) fail(err error) {
	st.end(err)
	st.channel.remove(st)
}

// end makes err the result of all calls, unless they have one.
func (st *Stream) end(err error) {
	discarded(&st.in)
	if st.err == nil {
		st.err = err
		close(st.over)
	}
}

// settle forgets the stream when both halves are closed and its user does not need it.
func (st *Stream) settle() {
	if st.closed && (st.sentFin || st.stopped) && (st.fin || st.sentStop) {
		st.channel.remove(st)
	}
}

func (st *Stream) sendable() int {
	if st.writeError() != nil {
		return 0
	}
	return min(len(st.pending), st.credit)
}

func (st *Stream) finDue() bool  { return st.ending && !st.sentFin && !st.stopped }
func (st *Stream) stopDue() bool { return st.closed && !st.fin && !st.sentStop }

// enqueue lets the stream take its turn if it has something to send. Session.mu is held.
func (st *Stream) enqueue() {
	c := st.channel
	if st.queued || c.streams[st.id] != st {
		return
	}
	if st.announce || st.resetDue != 0 || st.grant() > 0 || st.sendable() > 0 || st.finDue() || st.stopDue() {
		st.queued = true
		c.ready = append(c.ready, st)
		c.work.Send()
	}
}

// apply takes a frame of the other end. Session.mu is held.
func (st *Stream) apply(h header, payload []byte) error {
	switch h.kind {
	case kindData:
		return st.received(payload)
	case kindCredit:
		n := int(binary.BigEndian.Uint32(payload))
		if n > 1<<30 || st.credit+n > 1<<30 {
			return violation("a credit of %d bytes", n)
		}
		st.credit += n
	case kindFin:
		if st.fin {
			return violation("a second FIN of stream %d", st.id)
		}
		st.fin = true
		st.readable.Send()
	case kindStop:
		st.stopped = true
		st.writable.Send()
	case kindReset:
		why := wire.Refusal(payload[0])
		if why < wire.Refused || why > wire.Broken {
			why = wire.Broken // of a newer version
		}
		st.fail(wire.Error{Refusal: why})
		return nil
	}
	st.settle()
	st.enqueue()
	return nil
}

// received keeps bytes for the reader.
func (st *Stream) received(b []byte) error {
	switch {
	case st.fin:
		return violation("data after the FIN of stream %d", st.id)
	case st.in.End()+uint64(len(b)) > st.allowed:
		return violation("more data of stream %d than the credit permits", st.id)
	case st.err != nil:
		st.in.Skip(len(b)) // nothing reads it; the other end learns that by STOP or RESET
		return nil
	}
	s := st.channel.session
	for s.held+len(b)+queue.ChunkSize > s.cfg.Memory/2 {
		s.refused++
		s.largest().reset(wire.Exhausted, wire.Error{Refusal: wire.Exhausted})
		if st.err != nil {
			st.in.Skip(len(b))
			return nil
		}
	}
	st.in.Append(b)
	st.readable.Send()
	return nil
}

func (st *Stream) LocalAddr() net.Addr {
	if st.mine() {
		return net.TCPAddrFromAddrPort(st.flow.Src)
	}
	return net.TCPAddrFromAddrPort(st.flow.Dst)
}

func (st *Stream) RemoteAddr() net.Addr {
	if st.mine() {
		return net.TCPAddrFromAddrPort(st.flow.Dst)
	}
	return net.TCPAddrFromAddrPort(st.flow.Src)
}

// mine reports whether this end opened the stream.
func (st *Stream) mine() bool { return st.id%2 == 1 == st.channel.session.exit }

// Flow is what the stream was opened for.
func (st *Stream) Flow() wire.Flow { return st.flow }

func (st *Stream) SetDeadline(t time.Time) error {
	st.readUntil.Set(t)
	st.writeUntil.Set(t)
	return nil
}

func (st *Stream) SetReadDeadline(t time.Time) error {
	st.readUntil.Set(t)
	return nil
}

func (st *Stream) SetWriteDeadline(t time.Time) error {
	st.writeUntil.Set(t)
	return nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
