package ssh

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// lateStderr is a session that has ended with exit code 1; what it printed on standard error comes
// later.
type lateStderr struct {
	text  string
	after time.Duration // negative: the stream never ends
	ended chan struct{}
	rest  io.Reader
}

func (s *lateStderr) Stdin() io.WriteCloser { return swallow{} }
func (s *lateStderr) Stdout() io.Reader     { return strings.NewReader("") }
func (s *lateStderr) Stderr() io.Reader     { return s }
func (s *lateStderr) Wait() (int, error)    { return 1, nil }
func (s *lateStderr) Close() error          { close(s.ended); return nil }

func (s *lateStderr) Read(p []byte) (int, error) {
	if s.rest == nil {
		if s.after < 0 {
			<-s.ended
			return 0, io.EOF
		}
		time.Sleep(s.after)
		s.rest = strings.NewReader(s.text)
	}
	return s.rest.Read(p)
}

type lateTransport struct {
	Transport
	text  string
	after time.Duration
}

func (t *lateTransport) Start(context.Context, string) (link.Session, error) {
	return &lateStderr{text: t.text, after: t.after, ended: make(chan struct{})}, nil
}

// TestLateStderr: an error has its reason even if the exit code arrives before the text; a stream
// that never ends is not waited for until the deadline.
func TestLateStderr(t *testing.T) {
	for name, dial := range map[string]func(context.Context, Transport) error{
		"relay": func(ctx context.Context, tr Transport) error {
			_, err := relayed(ctx, tr, relays[0], false, "/run/a.sock", nil)
			return err
		},
		"lock": func(ctx context.Context, tr Transport) error {
			_, err := (&Host{transport: tr}).lock(ctx, "/run/a.lock", nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				err := dial(ctx, &lateTransport{text: "No such file or directory\n", after: 100 * time.Millisecond})
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("the reason is lost: %v", err)
				}
				began := time.Now()
				err = dial(ctx, &lateTransport{after: -1})
				if took := time.Since(began); err == nil || took > 10*time.Second {
					t.Errorf("a standard error that never ends: %v after %v", err, took)
				}
			})
		})
	}
}
