package stream_test

import (
	"encoding/binary"
	"io"
	"net"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/cri/stream"
	"github.com/bowline-k8s/bowline/host/budget"
)

const switched = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n"

// data and control return SPDY/3 frames with a declared length n and the given payload.
func data(n int, payload string) string {
	var h [8]byte
	binary.BigEndian.PutUint32(h[:], 1)
	binary.BigEndian.PutUint32(h[4:], uint32(n))
	return string(h[:]) + payload
}

func control(kind uint16, n int, payload string) string {
	var h [8]byte
	binary.BigEndian.PutUint16(h[:], 0x8003)
	binary.BigEndian.PutUint16(h[2:], kind)
	binary.BigEndian.PutUint32(h[4:], uint32(n))
	return string(h[:]) + payload
}

// TestFramesAreBounded: a stream that we decode ends at a frame that is too large, before its
// payload, however reads split it. What a runtime writes passes.
func TestFramesAreBounded(t *testing.T) {
	reply := control(2, 16, strings.Repeat("r", 16))
	for _, c := range []struct {
		name, stream, says string
	}{
		{"what a runtime writes", strings.Repeat(reply, 4) + strings.Repeat(data(32<<10, strings.Repeat("x", 32<<10)), 40) + control(6, 4, "ping") + data(0, ""), ""},
		{"a large data frame", reply + data(1<<24-1, "x"), "data frame"},
		{"a large header frame", control(2, 257, "x"), "header frame"},
		{"headers of a stream of its own", control(1, 1000, "x"), "header frame"},
		{"later headers", control(8, 1000, "x"), "header frame"},
		{"a large control frame", control(4, 1<<20, "x"), "control frame"},
		{"many header frames", strings.Repeat(reply, 17), "more than 16 header frames"},
	} {
		for _, step := range []int{1, 7, 1 << 20} {
			if step == 1 && len(c.stream) > 1<<20 {
				continue
			}
			near, far := net.Pipe()
			go func() {
				defer far.Close()
				for all := switched + c.stream; len(all) > 0; {
					n := min(step, len(all))
					if _, err := io.WriteString(far, all[:n]); err != nil {
						return
					}
					all = all[n:]
				}
			}()
			got, err := io.ReadAll(stream.NewReplyConn(near, nil, true))
			near.Close()
			switch {
			case c.says == "" && (err != nil || string(got) != switched+c.stream):
				t.Errorf("%s, by %d bytes: %v, and %d bytes of %d", c.name, step, err, len(got), len(switched+c.stream))
			case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
				t.Errorf("%s, by %d bytes: %v, want %q", c.name, step, err, c.says)
			}
		}
	}
}

// TestEndlessFrames: a frame of 16 MiB is not read, and the host's budget is not exceeded.
func TestEndlessFrames(t *testing.T) {
	for name, begin := range map[string]string{"data": data(1<<24-1, ""), "headers": control(2, 1<<24-1, "")} {
		lie := liar{begin: switched + begin, chunk: strings.Repeat("x", 1000)}
		account := budget.New(budget.Limits{})
		if err := execTo(t, account, "http", &lie); err == nil {
			t.Errorf("%s: no error", name)
		}
		if n := lie.wrote.Load(); n > limit {
			t.Errorf("%s: %d bytes were read, want at most %d", name, n, limit)
		}
		if err := account.Err(); err != nil {
			t.Errorf("%s: the host has exceeded %v", name, err)
		}
	}
}
