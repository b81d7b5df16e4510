package mux

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/bowline-k8s/bowline/lifeline/wire"
	"github.com/bowline-k8s/bowline/notify"
)

// A table and a status travel as JSON, in pieces between which datagrams pass. The newest wins: a new one
// begins again, and the receiving end keeps only the last that is complete.
const (
	largestTable  = 4 << 20
	largestStatus = 16 << 10
)

// news is what arrives of the table or of the status.
type news struct {
	changed  notify.Signal
	partial  []byte // of the one that is arriving
	open     bool   // its first piece has arrived
	newest   []byte // the last one that is complete
	returned []byte // the last one that the user has got
}

// piece takes a piece. Session.mu is held.
func (a *aside) piece(flags uint64, p []byte) error {
	n, most := &a.news, largestTable
	if a.gets == kindStatus {
		most = largestStatus
	}
	switch {
	case flags&^(firstPiece|lastPiece) != 0:
		return violation("a piece with the flags %d", flags)
	case flags&firstPiece != 0:
		n.open = true
		n.partial = n.partial[:0]
	case !n.open:
		return violation("a piece without the first one")
	}
	if len(n.partial)+len(p) > most {
		return violation("a table or a status of more than %d bytes", most)
	}
	before := cap(n.partial)
	n.partial = append(n.partial, p...)
	a.charge(cap(n.partial) - before)
	if flags&lastPiece != 0 {
		n.newest = bytes.Clone(n.partial)
		a.charge(-cap(n.partial))
		n.partial, n.open = nil, false
		n.changed.Send()
	}
	return nil
}

// say replaces what the other end has of the table or of the status.
func (s *Session) say(kind byte, value any, most int) error {
	b, err := json.Marshal(value)
	if err != nil {
		return err
	}
	a := s.aside
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case a.sends != kind:
		return ErrRole
	case s.err != nil:
		return s.err
	case len(b) > most:
		return fmt.Errorf("%d bytes, more than %d: %w", len(b), most, ErrTooLarge)
	case bytes.Equal(b, a.draft):
		return nil // it has it, or gets it
	}
	a.draft, a.sent = b, 0
	a.work.Send()
	return nil
}

// hear returns the next table or status that differs from the last one.
func (s *Session) hear(ctx context.Context, kind byte) ([]byte, error) {
	for {
		if b, err := s.tryHear(kind); b != nil || err != nil {
			return b, err
		}
		select {
		case <-s.aside.news.changed:
		case <-s.done:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (s *Session) tryHear(kind byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := &s.aside.news
	switch {
	case s.aside.gets != kind:
		return nil, ErrRole
	case s.err != nil:
		return nil, s.err
	case bytes.Equal(n.newest, n.returned):
		return nil, nil
	}
	n.returned = n.newest
	return n.newest, nil
}

// SetTable replaces the helper's table.
func (s *Session) SetTable(t wire.Table) error { return s.say(kindTable, t, largestTable) }

// Table returns the next table that differs from the last one. One that makes no sense ends the session.
func (s *Session) Table(ctx context.Context) (wire.Table, error) {
	b, err := s.hear(ctx, kindTable)
	if err != nil {
		return wire.Table{}, err
	}
	t, err := parseTable(b)
	if err != nil {
		s.finish(err)
	}
	return t, err
}

// Report replaces the exit's view of the helper. A long Message is cut.
func (s *Session) Report(st wire.Status) error {
	const longest = 1 << 10
	if len(st.Message) > longest {
		st.Message = strings.ToValidUTF8(st.Message[:longest], "")
	}
	return s.say(kindStatus, st, largestStatus)
}

// Status returns the next status that differs from the last one. One that makes no sense ends the session.
func (s *Session) Status(ctx context.Context) (wire.Status, error) {
	b, err := s.hear(ctx, kindStatus)
	if err != nil {
		return wire.Status{}, err
	}
	st, err := parseStatus(b)
	if err != nil {
		s.finish(err)
	}
	return st, err
}

func parseStatus(b []byte) (st wire.Status, err error) {
	if err := json.Unmarshal(b, &st); err != nil {
		return wire.Status{}, violation("a status that is not one: %v", err)
	}
	return st, nil
}

// parseTable parses a table, each of whose prefixes and addresses is valid.
func parseTable(b []byte) (t wire.Table, err error) {
	if err := json.Unmarshal(b, &t); err != nil {
		return wire.Table{}, violation("a table that is not one: %v", err)
	}
	valid := true
	for _, all := range [][]netip.Prefix{t.Cluster, t.Local} {
		for _, p := range all {
			valid = valid && p.IsValid()
		}
	}
	for _, a := range t.DNS {
		valid = valid && a.IsValid()
	}
	for _, s := range t.Services {
		valid = valid && s.Address.IsValid() && s.Affinity >= 0
		for _, b := range s.Backends {
			valid = valid && b.IsValid()
		}
	}
	if !valid {
		return wire.Table{}, violation("a table with an address that is not one")
	}
	return t, nil
}
