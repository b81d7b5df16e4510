package mux

import (
	"context"
	"io"
	"time"

	"github.com/bowline-k8s/bowline/lifeline/pipe"
	"github.com/bowline-k8s/bowline/lifeline/wire"
	"github.com/bowline-k8s/bowline/notify"
)

const (
	// stale is how long a datagram waits for a transport. After that its sender has asked again.
	stale = 5 * time.Second
	// datagramBytes is the most that the datagrams of one direction hold.
	datagramBytes = 1 << 20
)

// aside has the pipe for all but streams. Session.mu guards what changes.
type aside struct {
	session *Session
	pipe    *pipe.Pipe
	work    notify.Signal // wakes the writer

	out, in mail
	arrived notify.Signal // wakes one Receive, which wakes the next

	sends, gets byte // kinds: a table and a status, or the reverse
	draft       []byte
	sent        int // bytes of draft
	news        news
}

// mail is a queue of datagrams.
type mail struct {
	all   []dated
	bytes int
}

type dated struct {
	wire.Datagram
	since time.Time
}

func newAside(s *Session, p *pipe.Pipe) *aside {
	a := &aside{session: s, pipe: p, work: notify.New(), arrived: notify.New(), sends: kindStatus, gets: kindTable}
	if s.exit {
		a.sends, a.gets = kindTable, kindStatus
	}
	a.news.changed = notify.New()
	return a
}

// put adds a datagram, or reports that there is no room. Session.mu is held.
func (a *aside) put(m *mail, d wire.Datagram) bool {
	if len(m.all) >= a.session.cfg.Datagrams || m.bytes+len(d.Payload) > datagramBytes {
		a.session.dropped++
		return false
	}
	m.all = append(m.all, dated{d, time.Now()})
	m.bytes += len(d.Payload)
	a.charge(len(d.Payload))
	return true
}

// take removes the first datagram. Session.mu is held.
func (a *aside) take(m *mail) (dated, bool) {
	if len(m.all) == 0 {
		return dated{}, false
	}
	d := m.all[0]
	m.all[0] = dated{}
	if m.all = m.all[1:]; len(m.all) == 0 {
		m.all = nil
	}
	m.bytes -= len(d.Payload)
	a.charge(-len(d.Payload))
	return d, true
}

func (a *aside) charge(delta int) {
	if charge := a.session.cfg.Charge; charge != nil {
		charge(int64(delta))
	}
}

// discard drops all datagrams. Session.mu is held.
func (a *aside) discard() {
	for _, m := range []*mail{&a.out, &a.in} {
		for len(m.all) > 0 {
			a.take(m)
		}
	}
	a.charge(-cap(a.news.partial))
	a.news.partial = nil
}

// Send sends a datagram, or drops it with wire.ErrFull.
func (s *Session) Send(d wire.Datagram) error {
	if err := checkFlow(d.Flow); err != nil {
		return err
	}
	if len(d.Payload) > largestDatagram {
		return ErrTooLarge
	}
	d.Payload = append([]byte(nil), d.Payload...)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	if !s.aside.put(&s.aside.out, d) {
		return wire.ErrFull
	}
	s.aside.work.Send()
	return nil
}

// Receive returns the next datagram.
func (s *Session) Receive(ctx context.Context) (wire.Datagram, error) {
	for {
		d, ok, err := s.tryReceive()
		if ok || err != nil {
			return d, err
		}
		select {
		case <-s.aside.arrived:
		case <-s.done:
		case <-ctx.Done():
			return wire.Datagram{}, ctx.Err()
		}
	}
}

func (s *Session) tryReceive() (wire.Datagram, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return wire.Datagram{}, false, s.err
	}
	d, ok := s.aside.take(&s.aside.in)
	if len(s.aside.in.all) > 0 {
		s.aside.arrived.Send()
	}
	return d.Datagram, ok, nil
}

// read applies the frames of the pipe.
func (a *aside) read() error { return frames(a.pipe, a.frame) }

// frame applies a frame, whose payload it reads.
func (a *aside) frame(r io.Reader, h header) error {
	if h.kind != kindDatagram && h.kind != a.gets {
		return violation("a frame of the kind %d beside streams", h.kind)
	}
	payload := make([]byte, h.length)
	if _, err := io.ReadFull(r, payload); err != nil {
		return ended(err)
	}
	return a.apply(h, payload)
}

func (a *aside) apply(h header, payload []byte) error {
	a.session.mu.Lock()
	defer a.session.mu.Unlock()
	if a.session.err != nil {
		return a.session.err
	}
	if h.kind == a.gets {
		return a.piece(h.stream, payload)
	}
	f, payload, err := parseFlow(payload)
	if err != nil {
		return err
	}
	if a.put(&a.in, wire.Datagram{Flow: f, Payload: payload}) {
		a.arrived.Send()
	}
	return nil
}

// write writes the datagrams and, between them, the pieces of a table or a status.
func (a *aside) write() error {
	var b []byte
	for {
		if b = a.next(b[:0]); len(b) == 0 {
			b = nil
			select {
			case <-a.work:
				continue
			case <-a.session.done:
				return a.session.Err()
			}
		}
		if _, err := a.pipe.Write(b); err != nil {
			return ended(err)
		}
	}
}

// next appends a datagram and a piece, as far as there are some.
func (a *aside) next(b []byte) []byte {
	a.session.mu.Lock()
	defer a.session.mu.Unlock()
	for {
		d, ok := a.take(&a.out)
		if !ok {
			break
		}
		if time.Since(d.since) > stale {
			a.session.dropped++
			continue
		}
		at := len(b)
		b = append(appendFlow(header{kindDatagram, 0, 0}.append(b), d.Flow), d.Payload...)
		header{kindDatagram, len(b) - at - headerSize, 0}.append(b[at:at])
		break
	}
	if left := a.draft[a.sent:]; len(left) > 0 {
		var flags uint64
		if a.sent == 0 {
			flags |= firstPiece
		}
		if len(left) <= quantum {
			flags |= lastPiece
		}
		left = left[:min(len(left), quantum)]
		b = append(header{a.sends, len(left), flags}.append(b), left...)
		a.sent += len(left)
	}
	return b
}
