package mux

import (
	"encoding/json"
	"net"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/wire"
	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzFrames gives both readers of an exit what a hostile helper sends: no panic, and no more streams and bytes
// than are permitted.
func FuzzFrames(f *testing.F) {
	corpus.Add(f)
	fl := appendFlow(nil, flow(1))
	frame := func(kind byte, stream uint64, payload ...byte) []byte {
		return append(header{kind, len(payload), stream}.append(nil), payload...)
	}
	var talk []byte
	for _, part := range [][]byte{frame(kindOpen, 2, fl...), frame(kindData, 2, 'x'), frame(kindCredit, 2, 0, 0, 1, 0), frame(kindFin, 2),
		frame(kindStop, 2), frame(kindData, 1, 'y'), frame(kindReset, 1, 3), frame(kindOpen, 4, fl...), frame(kindOpen, 6, fl...)} {
		talk = append(talk, part...)
	}
	f.Add(talk)
	f.Add(frame(kindDatagram, 0, append(fl, "question"...)...))
	f.Add(append(frame(kindStatus, firstPiece, '{'), frame(kindStatus, lastPiece, '}')...))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Client(Config{Flows: 2, Pipes: 1}, nil)
		testutil.Must(t, err)
		st, err := s.Open(t.Context(), flow(9))
		testutil.Must(t, err)
		go st.Write(make([]byte, 100))
		defer s.Close()
		c, a := s.channels[0], s.aside
		for _, read := range []func(*reader) error{
			func(r *reader) error { return frames(r, c.frame) },
			func(r *reader) error { return frames(r, a.frame) },
		} {
			r := reader(b)
			read(&r)
			c.collect(make([]byte, 0, batchSize))
		}
		if got := s.Stats(); got.Flows > 2 || got.Held > 2*(len(b)+8<<10) || len(a.in.all) > len(b) || len(a.news.newest) > len(b) {
			t.Errorf("%d bytes made %+v", len(b), got)
		}
	})
}

type reader []byte

func (r *reader) Read(p []byte) (int, error) {
	n := copy(p, *r)
	*r = (*r)[n:]
	if n == 0 && len(p) > 0 {
		return 0, net.ErrClosed
	}
	return n, nil
}

// FuzzFlow: a flow that is accepted survives the round trip.
func FuzzFlow(f *testing.F) {
	corpus.Add(f)
	f.Add(appendFlow(nil, flow(1)))
	f.Fuzz(func(t *testing.T, b []byte) {
		fl, rest, err := parseFlow(b)
		if err != nil {
			return
		}
		used := b[:len(b)-len(rest)]
		if again := appendFlow(nil, fl); string(again) != string(used) || checkFlow(fl) != nil || len(again) > flowMost {
			t.Errorf("%x became %+v and %x", used, fl, again)
		}
	})
}

// FuzzNews: a table or a status that is accepted survives the round trip.
func FuzzNews(f *testing.F) {
	corpus.Add(f)
	b, err := json.Marshal(table(2))
	testutil.Must(f, err)
	f.Add(b)
	b, err = json.Marshal(wire.Status{Reason: "Ready", Flows: 3})
	testutil.Must(f, err)
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, err := parseTable(b); err == nil {
			again, err := json.Marshal(got)
			testutil.Must(t, err)
			if _, err := parseTable(again); err != nil {
				t.Errorf("%q became %q: %v", b, again, err)
			}
		}
		if got, err := parseStatus(b); err == nil {
			again, err := json.Marshal(got)
			testutil.Must(t, err)
			if twice, err := parseStatus(again); err != nil || twice != got {
				t.Errorf("%q became %q: %v", b, again, err)
			}
		}
	})
}
