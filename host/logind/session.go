package logind

import (
	"bufio"
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/notify"
)

//go:embed watch.sh
var script string

// Config of a Session.
type Config struct {
	// Machine, Who and Why are required; the latter two appear in "systemd-inhibit --list".
	Machine  Machine
	Who, Why string
	// Need is how long logind must wait for us. If it would wait less, it is configured to wait
	// for Need and Margin.
	Need, Margin time.Duration
}

// Session is one process on the host that watches for shutdowns and holds the inhibitor.
type Session struct {
	machine Machine
	process host.Process
	nonce   string
	delay   time.Duration

	words chan string // "held", "released", "refused"
	hints notify.Signal
	ended chan struct{} // closed after err and last are set
	err   error

	mu    sync.Mutex
	last  string // the last line of a program's output
	asked bool   // an answer is expected
}

// Open starts a Session. ErrNone: there is no logind.
func Open(ctx context.Context, c Config) (*Session, error) {
	waits, err := raise(ctx, c.Machine, c.Need, c.Margin)
	if err != nil {
		return nil, err
	}
	nonce := rand.Text()
	p, err := c.Machine.Start(ctx, "sh", "-c", script, "sh", nonce, c.Who, c.Why)
	if err != nil {
		return nil, fmt.Errorf("watch for a shutdown: %w", err)
	}
	s := &Session{machine: c.Machine, process: p, nonce: nonce, delay: waits,
		words: make(chan string, 1), hints: notify.New(), ended: make(chan struct{})}
	account := budget.From(ctx)
	account.Go("read what logind says", func() { s.listen(account) })
	return s, nil
}

// noisy is the time in which logind's signals may print as much as one command may. Normally
// they are a few lines a day.
const noisy = time.Hour

// listen reads and dispatches the output of the process until it ends.
func (s *Session) listen(account *budget.Account) {
	defer close(s.ended)
	out := bufio.NewScanner(s.process)
	spent, since := int64(0), time.Now()
	for out.Scan() {
		if time.Since(since) > noisy {
			spent, since = 0, time.Now()
		}
		if spent += int64(len(out.Bytes())) + 1; spent > account.Limit(budget.OutputBytes) {
			s.err = account.Exceed(budget.OutputBytes, "the monitor of logind's signals")
			return
		}
		line := strings.TrimSpace(out.Text())
		word, ours := strings.CutPrefix(line, s.nonce+" ")
		switch {
		case ours && word == "ended":
			s.err = fmt.Errorf("the monitor of logind's signals has ended: %s", s.lastLine())
			return
		case ours && !s.wasAsked():
			s.err = fmt.Errorf("the inhibitor of shutdowns is lost: %s: %s", word, s.lastLine())
			return
		case ours:
			select {
			case s.words <- word:
			default: // the caller of ask has returned
			}
		case strings.Contains(line, "PrepareForShutdown"), strings.HasPrefix(line, "Monitoring"):
			s.hints.Send()
		case line != "":
			s.mu.Lock()
			s.last = line
			s.mu.Unlock()
		}
	}
	if s.err = out.Err(); s.err == nil {
		s.err = fmt.Errorf("the watch for a shutdown has ended: %s: %w", s.lastLine(), io.EOF)
	}
}

func (s *Session) lastLine() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// wasAsked reports whether an answer was expected, and resets that.
func (s *Session) wasAsked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.asked
	s.asked = false
	return was
}

// Delay is how long logind waits for us.
func (s *Session) Delay() time.Duration { return s.delay }

// Hints fires when the caller should ask Preparing.
func (s *Session) Hints() <-chan struct{} { return s.hints }

// Ended is closed when the session is over; Err has the reason.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// Err is the reason why the session ended. It may be read only after Ended is closed.
func (s *Session) Err() error { return s.err }

// Preparing reports whether the host is shutting down.
func (s *Session) Preparing(ctx context.Context) (bool, error) { return preparing(ctx, s.machine) }

// Hold takes the inhibitor. logind refuses it during a shutdown.
func (s *Session) Hold(ctx context.Context) error { return s.ask(ctx, "hold", "held") }

// Release releases the inhibitor: a shutdown that waits for it continues.
func (s *Session) Release(ctx context.Context) error { return s.ask(ctx, "release", "released") }

// ask sends one request and waits for its answer. There must be one caller at a time.
func (s *Session) ask(ctx context.Context, what, want string) error {
	ctx, cancel := context.WithTimeout(ctx, askedFor)
	defer cancel()
	select {
	case <-s.words: // a late answer to a caller that has returned
	default:
	}
	s.mu.Lock()
	s.asked = true
	s.mu.Unlock()
	sent := make(chan error, 1)
	go func() {
		_, err := s.process.Write([]byte(what + "\n"))
		sent <- err
	}()
	for {
		select {
		case err := <-sent:
			if err != nil {
				return fmt.Errorf("%s the inhibitor of shutdowns: %w: %w", what, err, host.ErrUnreachable)
			}
			sent = nil
		case word := <-s.words:
			if word != want {
				return fmt.Errorf("%s the inhibitor of shutdowns: %s: %s", what, word, s.lastLine())
			}
			return nil
		case <-s.ended:
			return fmt.Errorf("%s the inhibitor of shutdowns: %w", what, s.err)
		case <-ctx.Done():
			return fmt.Errorf("%s the inhibitor of shutdowns: %w", what, errors.Join(ctx.Err(), host.ErrUnreachable))
		}
	}
}

// Close ends the process, which releases the inhibitor. It does not wait for an answer of a host
// that may be unreachable.
func (s *Session) Close() error { return s.process.Close() }
