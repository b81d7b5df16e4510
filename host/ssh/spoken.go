package ssh

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// spoken has the lines of ours among what a session prints: a nonce, a blank, a word.
// What a login shell prints before is no line of ours. A line and all that is printed
// between two words have a budget.
type spoken struct {
	r      *bufio.Reader
	nonce  string
	budget *budget.Account
	what   string // printed it, for errors
	noise  int64  // bytes since the last word that was waited for
}

func newSpoken(r io.Reader, nonce string, a *budget.Account, what string) *spoken {
	return &spoken{r: bufio.NewReader(r), nonce: nonce, budget: a, what: what}
}

// next reads up to the next line of ours.
func (w *spoken) next() (string, error) {
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

// wanted begins the budget of what is printed again, after a word that was waited for.
func (w *spoken) wanted() { w.noise = 0 }

// line is one without its newline.
func (w *spoken) line() (string, error) {
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

// skipTo reads up to the mark, and not beyond.
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

// said keeps the beginning of what is written.
type said struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// maxSaid is what is kept.
const maxSaid = 4 << 10

func (t *said) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf.Write(p[:min(len(p), maxSaid-t.buf.Len())])
	return len(p), nil
}

func (t *said) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte(nil), t.buf.Bytes()...)
}

// drain reads the standard error of a session, which would stop where it is not read.
// A session that prints more than a budget of it is closed.
func drain(s link.Session, into *said, a *budget.Account, what string) {
	defer a.Recover("the standard error of " + what)
	limit := a.Limit(budget.OutputBytes)
	if n, _ := io.Copy(into, io.LimitReader(s.Stderr(), limit+1)); n > limit {
		_ = a.Exceed(budget.OutputBytes, "the standard error of "+what) // the account tells of it
		s.Close()
	}
}
