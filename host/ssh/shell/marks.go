package shell

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/bowline-k8s/bowline/host/budget"
)

// The kinds of marks, after the nonce.
const (
	markBegin = 'b'
	markGroup = 'p' // followed by the script's process group
	markExit  = 'x' // followed by the exit code
	markEnd   = 'e'
)

// maxMark bounds what follows a nonce: a kind, a number and the newline.
const maxMark = 16

// maxNoise bounds the bytes before a begin mark that are kept for messages.
const maxNoise = 4 << 10

// collector parses one stream of an answer. Bytes before the begin mark (a login shell's
// greeting) do not belong to it. Marks may appear anywhere within the output, because a relay on
// the host writes to the same pipe.
type collector struct {
	nonce  []byte
	max    int // bytes that are kept
	budget *budget.Account
	// whole names an output whose size the host alone decides, or is empty: more than max bytes
	// of it exceed the budget kind.
	whole string
	kind  budget.Kind
	turn  *turn // for large output; may be nil
	// onExit receives the exit code, once: by then data has everything that the script itself
	// wrote to this stream.
	onExit func(code int)
	// grouped is closed when the script has reported its process group; nil for a stream on which
	// it does not.
	grouped chan struct{}

	mu      sync.Mutex
	data    []byte
	noise   []byte
	pending []byte
	before  int64 // bytes before the begin mark
	beyond  int64 // bytes that were dropped
	group   int   // the script's process group; 0 if unknown
	begun   bool
	ended   bool
}

// feed takes the next bytes; done reports that the end mark was among them. If the output
// becomes large, feed first waits for its turn.
func (c *collector) feed(p []byte) (done bool, err error) {
	if c.turn != nil && len(c.data)+len(c.pending)+len(p) > bulky { // only feed writes them
		if err := c.turn.take(); err != nil {
			return false, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = append(c.pending, p...)
	for {
		at := bytes.Index(c.pending, c.nonce)
		if at < 0 {
			// The last bytes may be the beginning of a nonce.
			return false, c.keep(len(c.pending) - len(c.nonce) + 1)
		}
		if err := c.keep(at); err != nil {
			return false, err
		}
		rest := c.pending[len(c.nonce):]
		end := bytes.IndexByte(rest, '\n')
		if end < 0 {
			if len(rest) > maxMark {
				return false, errors.New("shell: a mark without an end")
			}
			return false, nil
		}
		if err := c.mark(string(rest[:end])); err != nil {
			return false, err
		}
		c.pending = rest[end+1:]
		if c.ended {
			if len(c.pending) > 0 {
				return false, fmt.Errorf("shell: %d bytes after the end of an answer", len(c.pending))
			}
			return true, nil
		}
	}
}

// keep moves n bytes from pending to the output. It drops bytes before the begin mark and those
// above max, up to the budget. Beyond it, bytes before the begin mark count against the host.
// Bytes above max count against it only if the output is whole, because a pod may cause many
// messages of our programs.
func (c *collector) keep(n int) error {
	if n <= 0 {
		return nil
	}
	p := c.pending[:n]
	c.pending = c.pending[n:]
	limit := c.budget.Limit(budget.OutputBytes)
	if !c.begun {
		c.noise = append(c.noise, p[:min(n, maxNoise-len(c.noise))]...)
		if c.before += int64(n); c.before > limit {
			return c.budget.Exceed(budget.OutputBytes, "the login shell")
		}
		return nil
	}
	kept := min(n, c.max-len(c.data))
	if kept < n && c.whole != "" {
		return c.budget.Exceed(c.kind, c.whole)
	}
	c.data = append(c.data, p[:kept]...)
	if c.beyond += int64(n - kept); c.beyond > limit {
		return &budget.ExceededError{Kind: budget.OutputBytes, Limit: limit, What: "the output of one request, beyond what is kept of it"}
	}
	return nil
}

func (c *collector) mark(m string) error {
	switch {
	case m == string(markBegin) && !c.begun:
		c.begun = true
		return nil
	case m == string(markEnd) && c.begun:
		c.ended = true
		return nil
	case len(m) > 1 && m[0] == markGroup && c.begun && c.group == 0:
		group, err := strconv.ParseUint(m[1:], 10, 31)
		if err != nil || group < 2 {
			return fmt.Errorf("shell: %q is not a process group", m[1:])
		}
		c.group = int(group)
		if c.grouped != nil {
			close(c.grouped)
		}
		return nil
	case len(m) > 1 && m[0] == markExit && c.begun && c.onExit != nil:
		code, err := strconv.ParseUint(m[1:], 10, 8)
		if err != nil {
			return fmt.Errorf("shell: the exit code %q is not between 0 and 255", m[1:])
		}
		c.onExit(int(code))
		c.onExit = nil
		return nil
	}
	return fmt.Errorf("shell: the mark %q is out of place", m)
}

// output returns the output so far.
func (c *collector) output() (data []byte, begun bool, noise []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.begun {
		return nil, false, append(append([]byte(nil), c.noise...), c.pending...)
	}
	return c.data, true, c.noise
}
