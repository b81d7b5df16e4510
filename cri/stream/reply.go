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

// replyTimeout bounds the time from the connection to the end of the answer's header. A
// runtime answers before it begins the stream; the time is for the way to it.
const replyTimeout = 30 * time.Second

// maxRefusal is how much of an answer is read that begins no stream, in bytes.
const maxRefusal = 64 << 10

// statusBytes of the first line are kept, to see whether a stream begins.
const statusBytes = 64

// replyConn bounds what is read of the answer to a request for a stream: those who read
// it keep all of the header before they look at it, and some of them the body too. Reads
// are the reader's alone, as with any connection.
type replyConn struct {
	net.Conn
	account *budget.Account
	timer   *time.Timer // closes the connection; stopped where the stream begins
	late    atomic.Bool

	state replyState
	first []byte // of the status line
	left  int64  // that may be read in this state
	line  int    // bytes of the header's line so far, without its end
	cr    bool   // the line so far is "\r"

	frames *frames // of the stream, where they are decoded here; nil: passed through
}

// replyState is what the next byte belongs to: it goes from statusLine to header, and from
// there to streaming or to refusal, once.
type replyState int

const (
	statusLine replyState = iota
	header
	streaming // status 101: frames that are decoded here are bounded, and nothing else
	refusal   // any other status
)

// newReplyConn bounds the answer on c; decoded says that its stream is decoded here.
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
	// What ended while the timer did is reported by the timer.
	if err != nil && r.late.Load() && !errors.Is(err, io.EOF) {
		err = fmt.Errorf("the runtime's streaming server has not answered in %s", replyTimeout)
	}
	return r.bounded(b[:n], rest, err)
}

// bounded is the result of a read of which rest belongs to the stream. A frame that is too
// large ends the stream, and is not held against the host: what a pod writes is in it.
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
		// No fault of the host: a runtime may say in it what a pod has said.
		return fmt.Errorf("the refusal of the runtime's streaming server is longer than %d bytes", maxRefusal)
	}
	return r.account.Exceed(budget.LineBytes, "the header of the answer of the runtime's streaming server")
}

// look follows the header to its end, which is where net/http sees it: an empty line,
// which ends in \r\n or in \n alone. It returns what belongs to the stream that follows.
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

// begin is the end of the header. What was read with it of what follows is not counted:
// it is less than a reader's buffer.
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
