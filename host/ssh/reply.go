package ssh

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// reply extracts our lines from the output of a session: a nonce, a blank, a word. Output of a
// login shell may precede them. A line has a budget, and so has everything that is printed
// between two words.
type reply struct {
	r      *bufio.Reader
	nonce  string
	budget *budget.Account
	what   string // the program that prints, for errors
	noise  int64  // bytes since the last expected word
}

func newReply(r io.Reader, nonce string, a *budget.Account, what string) *reply {
	return &reply{r: bufio.NewReader(r), nonce: nonce, budget: a, what: what}
}

// next reads up to the next line that our script prints, and returns its word.
func (w *reply) next() (string, error) {
	for {
		line, err := w.line()
		if err != nil {
			return "", err
		}
		if at := strings.LastIndex(line, w.nonce+" "); at >= 0 {
			return line[at+len(w.nonce)+1:], nil
		}
	}
}

// wanted resets the output budget, after a word that was expected.
func (w *reply) wanted() { w.noise = 0 }

// line reads one line and returns it without its newline.
func (w *reply) line() (string, error) {
	var line []byte
	for {
		part, err := w.r.ReadSlice('\n')
		w.noise += int64(len(part))
		switch {
		case int64(len(line)+len(part)) > w.budget.Limit(budget.LineBytes):
			return "", w.budget.Exceed(budget.LineBytes, "a line of "+w.what)
		case w.noise > w.budget.Limit(budget.OutputBytes):
			return "", w.budget.Exceed(budget.OutputBytes, "the output of "+w.what)
		}
		line = append(line, part...)
		if err == nil {
			return string(line[:len(line)-1]), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return "", err
		}
	}
}

// skipTo reads up to and including the mark, and not beyond.
func skipTo(r io.Reader, mark string, a *budget.Account, what string) error {
	var tail []byte
	b := make([]byte, 1)
	for read := int64(0); !bytes.HasSuffix(tail, []byte(mark)); read++ {
		if read > a.Limit(budget.OutputBytes) {
			return a.Exceed(budget.OutputBytes, "the output of "+what)
		}
		if _, err := io.ReadFull(r, b); err != nil {
			return err
		}
		if tail = append(tail, b[0]); len(tail) > 2*len(mark) {
			tail = append(tail[:0], tail[len(tail)-len(mark):]...)
		}
	}
	return nil
}

// stderr keeps the beginning of a session's standard error.
type stderr struct {
	mu    sync.Mutex
	buf   bytes.Buffer
	ended chan struct{}
}

const (
	// maxStderr is the number of bytes that a stderr keeps.
	maxStderr = 4 << 10
	// stderrGrace is how long text waits: a program that a session left behind may hold its
	// standard error open.
	stderrGrace = 2 * time.Second
)

func (e *stderr) Write(p []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.buf.Write(p[:min(len(p), maxStderr-e.buf.Len())])
	return len(p), nil
}

// text returns the session's standard error. The session has ended, but its last bytes may still be
// on their way, so text waits for the end of the stream.
func (e *stderr) text(ctx context.Context) []byte {
	late := time.NewTimer(stderrGrace)
	defer late.Stop()
	select {
	case <-e.ended:
	case <-late.C:
	case <-ctx.Done():
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return bytes.Clone(e.buf.Bytes())
}

// drain reads the standard error of a session, which would block if it were not read. It closes
// a session that prints more than OutputBytes.
func drain(s link.Session, a *budget.Account, what string) *stderr {
	e := &stderr{ended: make(chan struct{})}
	go func() {
		defer close(e.ended)
		defer a.Recover("the standard error of " + what)
		limit := a.Limit(budget.OutputBytes)
		if n, _ := io.Copy(e, io.LimitReader(s.Stderr(), limit+1)); n > limit {
			_ = a.Exceed(budget.OutputBytes, "the standard error of "+what) // the account reports it
			s.Close()
		}
	}()
	return e
}
