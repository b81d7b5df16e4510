package ssh

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// endless prints one text for ever, until it is closed.
type endless struct {
	text   []byte
	read   atomic.Int64
	closed chan struct{}
}

func (e *endless) Read(p []byte) (int, error) {
	select {
	case <-e.closed:
		return 0, net.ErrClosed
	default:
	}
	n := 0
	for n < len(p) {
		n += copy(p[n:], e.text[(e.read.Load()+int64(n))%int64(len(e.text)):])
	}
	e.read.Add(int64(n))
	return n, nil
}

// hostile is a session of a host that prints for ever, accepts every input and never ends.
type hostile struct {
	stdout, stderr endless
	ended          chan struct{}
	once           sync.Once
}

type swallow struct{}

func (swallow) Write(p []byte) (int, error) { return len(p), nil }
func (swallow) Close() error                { return nil }

func (s *hostile) Stdin() io.WriteCloser { return swallow{} }
func (s *hostile) Stdout() io.Reader     { return &s.stdout }
func (s *hostile) Stderr() io.Reader     { return &s.stderr }
func (s *hostile) Wait() (int, error)    { <-s.ended; return -1, net.ErrClosed }
func (s *hostile) Close() error {
	s.once.Do(func() { close(s.ended) })
	return nil
}

// hostileTransport returns such sessions, which print the given texts; an empty text prints
// nothing.
type hostileTransport struct {
	Transport
	stdout, stderr string

	mu   sync.Mutex
	last *hostile
}

type silent struct {
	io.Reader
	until chan struct{}
}

func (t *hostileTransport) Start(context.Context, string) (link.Session, error) {
	s := &hostile{ended: make(chan struct{})}
	s.stdout = endless{text: []byte(t.stdout), closed: s.ended}
	s.stderr = endless{text: []byte(t.stderr), closed: s.ended}
	t.mu.Lock()
	t.last = s
	t.mu.Unlock()
	return quiet{s}, nil
}

func (t *hostileTransport) StartBulk(ctx context.Context, command string) (link.Session, error) {
	return t.Start(ctx, command)
}

func (t *hostileTransport) session() *hostile {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.last
}

func (t *hostileTransport) Subsystem(ctx context.Context, _ string) (link.Session, error) {
	return t.Start(ctx, "")
}

func (t *hostileTransport) Close() error { return nil }

// quiet prints nothing for an empty text.
type quiet struct{ *hostile }

func (q quiet) Stdout() io.Reader { return orSilence(&q.hostile.stdout) }
func (q quiet) Stderr() io.Reader { return orSilence(&q.hostile.stderr) }

func orSilence(e *endless) io.Reader {
	if len(e.text) > 0 {
		return e
	}
	return &silent{until: e.closed}
}

func (s *silent) Read([]byte) (int, error) { <-s.until; return 0, net.ErrClosed }

var printed = map[string]struct {
	text string
	kind budget.Kind
}{
	"a line without an end": {"x", budget.LineBytes},
	"lines without an end":  {"Welcome to this machine!\n", budget.OutputBytes},
}

// TestMachineThatPrintsForEver: every wait for an answer of the host ends soon after the budget
// is exceeded, with an error that names it, and the driver ends.
func TestMachineThatPrintsForEver(t *testing.T) {
	for op, do := range map[string]func(ctx context.Context, h *Host) error{
		"lock": func(ctx context.Context, h *Host) error {
			_, err := h.Lock(ctx, "/run/lock", []byte("us"))
			return err
		},
		"dial by a relay": func(ctx context.Context, h *Host) error {
			_, err := h.Dial(ctx, "unix", "/run/containerd/containerd.sock")
			return err
		},
		"program": func(ctx context.Context, h *Host) error {
			p, err := h.Start(ctx, "watch")
			if err != nil {
				return err
			}
			_, err = p.Read(make([]byte, 10))
			return err
		},
		"script": func(ctx context.Context, h *Host) error {
			_, err := h.ReadFile(ctx, "/etc/hostname", 100)
			return err
		},
	} {
		for what, p := range printed {
			t.Run(op+"/"+what, func(t *testing.T) {
				t.Parallel()
				account := budget.New(budget.Limits{})
				tr := &hostileTransport{stdout: p.text}
				h := hostileHost(tr, account)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				err := do(ctx, h) // its deadline would cause another error
				var much *budget.ExceededError
				if !errors.As(err, &much) {
					t.Fatalf("error %v names no budget", err)
				}
				// If the code searches for bytes and not lines, the line has no limit of its
				// own.
				if much.Kind != p.kind && much.Kind != budget.OutputBytes {
					t.Errorf("exceeded %s, want %s", much.Kind, p.kind)
				}
				if account.Err() == nil {
					t.Error("the driver continues")
				}
				if read, most := tr.session().stdout.read.Load(), account.Limit(budget.OutputBytes)+256<<10; read > most {
					t.Errorf("%d bytes were read, want at most %d", read, most)
				}
				waitClosed(t, tr.session())
			})
		}
	}
}

// TestStandardErrorWithoutEnd: the same holds for output that no call waits for.
func TestStandardErrorWithoutEnd(t *testing.T) {
	account := budget.New(budget.Limits{})
	tr := &hostileTransport{stderr: "warning: no\n"}
	h := hostileHost(tr, account)
	p, err := h.Start(t.Context(), "watch")
	testutil.Must(t, err)
	defer p.Close()
	waitClosed(t, tr.session())
	if account.Err() == nil {
		t.Error("the driver continues")
	}
}

func waitClosed(t *testing.T, s *hostile) {
	t.Helper()
	testutil.Receive(t, s.ended, 10*time.Second, "the session is still open")
}

// TestWordsSurviveNoise: after each expected word, output counts from zero again.
func TestWordsSurviveNoise(t *testing.T) {
	a := budget.New(budget.Limits{OutputBytes: 1000})
	var text bytes.Buffer
	for range 10 {
		text.Write(bytes.Repeat([]byte("noise\n"), 100))
		text.WriteString("nonce beat\n")
	}
	w := newReply(&text, "nonce", a, "the test")
	for i := range 10 {
		if word, err := w.next(); err != nil || word != "beat" {
			t.Fatalf("word %d: %q, %v", i, word, err)
		}
		w.wanted()
	}
	text.Write(bytes.Repeat([]byte("nonce beat\n"), 1000))
	var err error
	for err == nil {
		_, err = w.next()
	}
	var much *budget.ExceededError
	if !errors.As(err, &much) || much.Kind != budget.OutputBytes {
		t.Errorf("words that no one waits for: %v", err)
	}
}

// hostileHost is a host that behaved well while it was probed.
func hostileHost(tr Transport, a *budget.Account) *Host {
	return &Host{name: "hostile", transport: tr, relay: "python3", shellPath: "/bin/sh", path: shell.DefaultPath, budget: a,
		shells: shell.NewPool(shell.Config{Start: tr.Start, Budget: a})}
}
