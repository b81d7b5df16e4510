package stream

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/bowline-k8s/bowline/test/corpus"
)

// answer is a connection on which a runtime's streaming server has written everything.
type answer struct {
	net.Conn
	io.Reader
}

func (a answer) Read(b []byte) (int, error) { return a.Reader.Read(b) }
func (answer) Close() error                 { return nil }

// FuzzReply reads any answer of a streaming server: net/http and the stream that follows must see the
// bytes that were sent, or a part of them and an error.
func FuzzReply(f *testing.F) {
	f.Add("HTTP/1.1 101 Switching Protocols\r\nUpgrade: SPDY/3.1\r\n\r\n\x80\x03\x00\x01\x00\x00\x00\x02ab", true, false)
	f.Add("HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n", false, true)
	f.Add("HTTP/1.1 101 x\n\n"+strings.Repeat("\x00", 100), true, true)
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, sent string, decoded, slowly bool) {
		src := io.Reader(strings.NewReader(sent))
		if slowly {
			src = iotest.OneByteReader(src)
		}
		c := newReplyConn(answer{Reader: src}, nil, decoded)
		defer c.(*replyConn).timer.Stop()
		got, err := io.ReadAll(c)
		if !strings.HasPrefix(sent, string(got)) || err == nil && len(got) != len(sent) {
			t.Errorf("read %q of %q, %v", got, sent, err)
		}
		if _, after, ok := strings.Cut(sent, "\r\n\r\n"); ok && err == nil && !decoded && after != "" {
			// A header that net/http reads as one is the header here as well.
			if r, err := http.ReadResponse(bufio.NewReader(strings.NewReader(sent)), nil); err == nil && r.StatusCode == http.StatusSwitchingProtocols && c.(*replyConn).state != streaming {
				t.Errorf("no stream begins after %q", sent)
			}
		}
	})
}

// FuzzFrames scans any bytes as SPDY frames: the result does not depend on how they are cut.
func FuzzFrames(f *testing.F) {
	f.Add([]byte("\x80\x03\x00\x01\x00\x00\x00\x02ab\x00\x00\x00\x01\x00\x00\x00\x03abc"), 1)
	f.Add(bytes.Repeat([]byte{0x80, 3, 0, 2, 0, 0, 0, 0}, 17), 5)
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		size = max(1, size%64)
		var whole, cut frames
		want := whole.look(data)
		var got error
		for rest := data; len(rest) > 0 && got == nil; {
			n := min(size, len(rest))
			got = cut.look(rest[:n])
			rest = rest[n:]
		}
		if (want == nil) != (got == nil) || want == nil && whole != cut {
			t.Errorf("whole: %v, %+v; in pieces of %d: %v, %+v", want, whole, size, got, cut)
		}
	})
}
