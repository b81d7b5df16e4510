package stream

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
)

// replyTimeout is the time from the connection to the end of the answer's header. A runtime answers
// before the stream begins, so most of the time is for the connection to it.
const replyTimeout = 30 * time.Second

// maxRefusal is how much is read of an answer that does not begin a stream, in bytes.
const maxRefusal = 64 << 10

// statusBytes is how much of the status line is kept, to see whether a stream begins.
const statusBytes = 64

// replyConn limits how much is read of the answer to a stream request: its readers keep the whole
// header in memory before they examine it, and some of them the body too. Only one goroutine may
// read at a time, as with any connection.
type replyConn struct {
	net.Conn
	account *budget.Account
	timer   *time.Timer // closes the connection; stopped when the stream begins
	late    atomic.Bool

	state replyState
	first []byte // of the status line
	left  int64  // bytes that may be read in this state
	line  int    // bytes of the current header line, without its end
	cr    bool   // the line so far is "\r"

	frames *frames // of the stream, if we decode it; nil: passed through
}

// replyState is the part of the reply that the next byte belongs to. It goes once from statusLine to header, and from
// there to streaming or refusal.
type replyState int

const (
	statusLine replyState = iota
	header
	streaming // status 101: limited only by frames, if decoded
	refusal   // any other status
)

// newReplyConn limits the answer on c; decoded means that we decode its stream.
func newReplyConn(c net.Conn, account *budget.Account, decoded bool) net.Conn {
	r := &replyConn{Conn: c, account: account, left: account.Limit(budget.LineBytes)}
	if decoded {
		r.frames = &frames{}
	}
	r.timer = time.AfterFunc(replyTimeout, func() {
		r.late.Store(true)
		_ = c.Close()
	})
	return r
}

func (r *replyConn) Read(b []byte) (int, error) {
	if r.state == streaming {
		n, err := r.Conn.Read(b)
		return r.bounded(b[:n], b[:n], err)
	}
	if r.left == 0 {
		return 0, r.exceeded()
	}
	if int64(len(b)) > r.left {
		b = b[:r.left]
	}
	n, err := r.Conn.Read(b)
	r.left -= int64(n)
	rest := r.look(b[:n])
	// An error because of the timeout is reported as the timeout.
	if err != nil && r.late.Load() && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("the runtime's streaming server has not answered in %s", replyTimeout)
	}
	return r.bounded(b[:n], rest, err)
}

// bounded returns the result of a read; rest is the part of it that belongs to the stream. A frame
// that is too large ends the stream, but does not count against the host's budget: it may carry
// output of a pod.
func (r *replyConn) bounded(read, rest []byte, err error) (int, error) {
	if r.frames != nil {
		if tooMuch := r.frames.look(rest); tooMuch != nil {
			_ = r.Conn.Close()
			return 0, tooMuch
		}
	}
	return len(read), err
}

func (r *replyConn) exceeded() error {
	if r.state == refusal {
		// Not the host's fault: a runtime may quote a pod's output here.
		return fmt.Errorf("the refusal of the runtime's streaming server is longer than %d bytes", maxRefusal)
	}
	return r.account.Exceed(budget.LineBytes, "the header of the answer of the runtime's streaming server")
}

// look scans the header for its end, by the rule of net/http: an empty line that ends in \r\n or
// only \n. It returns the part of b that belongs to the stream.
func (r *replyConn) look(b []byte) (rest []byte) {
	for i, c := range b {
		switch r.state {
		case statusLine:
			if c == '\n' {
				r.state = header
			} else if len(r.first) < statusBytes {
				r.first = append(r.first, c)
			}
		case header:
			switch {
			case c == '\n' && (r.line == 0 || r.line == 1 && r.cr):
				r.begin()
				if r.state == streaming {
					return b[i+1:]
				}
				return nil
			case c == '\n':
				r.line, r.cr = 0, false
			default:
				r.cr = r.line == 0 && c == '\r'
				r.line++
			}
		default:
			return nil
		}
	}
	return nil
}

// begin handles the end of the header. What the same read returned after it is not counted: it is
// less than a reader's buffer.
func (r *replyConn) begin() {
	if f := strings.Fields(string(r.first)); len(f) > 1 && f[1] == "101" {
		r.state = streaming
		r.timer.Stop()
		return
	}
	r.state, r.left = refusal, maxRefusal
}

func (r *replyConn) Close() error {
	r.timer.Stop()
	return r.Conn.Close()
}
