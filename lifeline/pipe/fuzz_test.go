package pipe

import (
	"bufio"
	"bytes"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/test/corpus"
)

// FuzzHello: a HELLO that is accepted survives the round trip.
func FuzzHello(f *testing.F) {
	corpus.Add(f)
	f.Add(hello{version, fresh, ID{NewEnd(), 1, 2}, 3, position{7, 5}, 1 << 20}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < helloSize {
			return
		}
		h, err := parseHello(b[:helloSize])
		if err == nil && !bytes.Equal(h.append(nil), b[:helloSize]) {
			t.Errorf("%x became %+v", b, h)
		}
	})
}

// FuzzFrames: whatever the other end sends, this one does not panic, holds at most its window, never takes
// for received what it has not sent, and keeps what it has not sent.
func FuzzFrames(f *testing.F) {
	corpus.Add(f)
	other := state{ring: 1 << 10, window: 1 << 10, allowed: 1 << 10}
	other.write([]byte("hello"))
	other.pingDue, other.pongDue = true, true
	seen := other.frames(make([]byte, 0, batchSize), time.Now())
	other.shut(time.Now())
	f.Add(append(seen, other.frames(make([]byte, 0, batchSize), time.Now())...))
	f.Add(position{3, 2}.append([]byte{kindAck}))
	f.Fuzz(func(t *testing.T, b []byte) {
		const window = 1 << 10
		p, err := New(Config{ID: ID{Channels: 1}, Resume: time.Second, Window: window})
		if err != nil {
			t.Fatal(err)
		}
		s := &p.state
		s.write([]byte("abcdefgh"))
		p.peer, s.allowed = 4, 4
		s.frames(make([]byte, 0, batchSize), time.Now())
		readFrames(bufio.NewReaderSize(bytes.NewReader(b), 16), receiver{p})
		if s.in.Len() > window || s.in.Len() > len(b) {
			t.Errorf("%d bytes are held of %d", s.in.Len(), len(b))
		}
		if s.out.Start() > 4 && !s.closed || s.accepted {
			t.Errorf("%d of 4 bytes that were sent are taken for received", s.out.Start())
		}
		s.frames(make([]byte, 0, batchSize), time.Now())
	})
}
