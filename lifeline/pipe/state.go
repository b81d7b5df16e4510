package pipe

import (
	"encoding/binary"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/internal/queue"
)

const (
	// ackBytes and ackDelay say when an ACK is due: after that many bytes, or that long after the first one.
	ackBytes = 64 << 10
	ackDelay = 100 * time.Millisecond
	// unsentMost is how many bytes a pipe accepts ahead of its transport. More would only wait there, in front
	// of what is written later.
	unsentMost = 128 << 10
)

// state is what one end knows of both directions. It does not know transports, only where the current one
// stands; the time is an argument.
type state struct {
	ring   int // most bytes of out
	window int // most bytes of in

	out      queue.Queue // written, and not known to be received
	sent     uint64      // the transport sends from this offset on; CLOSE has the offset out.End()
	reached  uint64      // the highest sent of all transports
	peerRead uint64      // the last position.Read of the other end
	allowed  uint64      // the other end has room for the bytes before this offset
	closing  bool        // this end is closed: CLOSE follows the last byte
	accepted bool        // the other end has received CLOSE

	in     queue.Queue // received, and not read
	closed bool        // CLOSE was received
	told   position    // what the other end knows of position
	since  time.Time   // when position first differed from told; zero if it does not

	pingDue, pongDue bool
}

// position is how far the incoming direction has come.
func (s *state) position() position {
	p := position{s.in.End(), s.in.Start()}
	if s.closed {
		p.Received++
	}
	return p
}

// room is how many bytes can be written now.
func (s *state) room() int {
	unsent := int(s.out.End() - min(s.sent, s.out.End()))
	return max(0, min(s.ring-s.out.Len(), unsentMost-unsent))
}

// write accepts bytes, and returns how many.
func (s *state) write(p []byte) int {
	n := min(len(p), s.room())
	s.out.Append(p[:n])
	return n
}

// read moves received bytes into p.
func (s *state) read(p []byte, now time.Time) int {
	n := s.in.Read(p)
	s.progress(now)
	return n
}

// shut closes this end. What it has not read, and what arrives later, is discarded.
func (s *state) shut(now time.Time) {
	s.closing = true
	s.in.Discard(s.in.End())
	s.progress(now)
}

// over reports whether both ends know that one of them is closed.
func (s *state) over() bool {
	return s.accepted || s.closed && s.told.Received == s.position().Received
}

// attach begins a transport, on which the other end has said where it stands.
func (s *state) attach(p position, window uint32) error {
	s.pingDue, s.pongDue = false, false
	if s.closed {
		return nil // it reads no more
	}
	if err := s.check(p, s.reached); err != nil {
		return err
	}
	s.sent = p.Received
	s.acknowledge(p, window)
	return nil
}

// hello is the position for the HELLO of this end.
func (s *state) hello() position {
	s.told, s.since = s.position(), time.Time{}
	return s.told
}

// ack takes what the other end says of the outgoing direction.
func (s *state) ack(p position, window uint32) error {
	if s.closed {
		return nil
	}
	if err := s.check(p, s.sent); err != nil {
		return err
	}
	s.acknowledge(p, window)
	return nil
}

func (s *state) check(p position, sent uint64) error {
	if p.Received < s.out.Start() || p.Received > sent || p.Read > p.Received || p.Read < s.peerRead {
		return violation("the position %d, %d after %d, %d of %d bytes", p.Received, p.Read, s.out.Start(), s.peerRead, sent)
	}
	return nil
}

func (s *state) acknowledge(p position, window uint32) {
	if p.Received > s.out.End() {
		s.accepted = true
	}
	s.out.Discard(min(p.Received, s.out.End()))
	s.peerRead, s.allowed = p.Read, p.Read+uint64(window)
}

// data takes received bytes.
func (s *state) data(p []byte, now time.Time) error {
	switch {
	case s.closed:
		return violation("data after CLOSE")
	case s.closing:
		s.in.Skip(len(p))
	case s.in.Len()+len(p) > s.window:
		return violation("more than %d bytes ahead of the reader", s.window)
	default:
		s.in.Append(p)
	}
	s.progress(now)
	return nil
}

// close takes CLOSE. The other end reads no more, so what it has not received is discarded.
func (s *state) close(now time.Time) error {
	if s.closed {
		return violation("a second CLOSE")
	}
	s.closed = true
	s.out.Discard(s.out.End())
	s.progress(now)
	return nil
}

// progress notes since when the other end does not know the position.
func (s *state) progress(now time.Time) {
	if s.since.IsZero() && s.position() != s.told {
		s.since = now
	}
}

// ackIn is how long the ACK may still wait; ok is false if none is owed.
func (s *state) ackIn(now time.Time) (wait time.Duration, ok bool) {
	if s.since.IsZero() {
		return 0, false
	}
	p := s.position()
	if s.closed || p.Received-s.told.Received >= ackBytes || p.Read-s.told.Read >= ackBytes {
		return 0, true
	}
	return max(0, s.since.Add(ackDelay).Sub(now)), true
}

// sendable is how many bytes can be sent now.
func (s *state) sendable() int {
	end := min(s.out.End(), s.allowed)
	if s.closed || s.sent >= end {
		return 0
	}
	return int(end - s.sent)
}

// closeDue reports whether CLOSE is to be sent now.
func (s *state) closeDue() bool { return s.closing && !s.closed && s.sent == s.out.End() }

// due reports whether there is anything to send now.
func (s *state) due(now time.Time) bool {
	wait, owed := s.ackIn(now)
	return owed && wait == 0 || s.pingDue || s.pongDue || s.sendable() > 0 || s.closeDue()
}

// frames appends to dst what is due, as far as its capacity permits, and takes it for sent. dst has room for
// one frame of each kind.
func (s *state) frames(dst []byte, now time.Time) []byte {
	if wait, owed := s.ackIn(now); owed && (wait == 0 || s.sendable() > 0) {
		dst = s.hello().append(append(dst, kindAck))
	}
	if s.pingDue {
		dst = append(dst, kindPing)
	}
	if s.pongDue {
		dst = append(dst, kindPong)
	}
	s.pingDue, s.pongDue = false, false
	for {
		n := min(s.sendable(), maxData, cap(dst)-len(dst)-dataHeader)
		if n <= 0 {
			break
		}
		dst = binary.BigEndian.AppendUint16(append(dst, kindData), uint16(n))
		s.out.Peek(s.sent, dst[len(dst):len(dst)+n])
		dst = dst[:len(dst)+n]
		s.sent += uint64(n)
	}
	if s.closeDue() && cap(dst) > len(dst) {
		dst = append(dst, kindClose)
		s.sent++
	}
	s.reached = max(s.reached, s.sent)
	return dst
}
