package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// Start runs the program in a session of its own on the bulk connection, because a program may print
// more than the control connection should carry. When the connection ends, sshd closes the
// program's input.
func (h *Host) Start(ctx context.Context, args ...string) (host.Process, error) {
	if len(args) == 0 {
		return nil, errors.New("start: no command")
	}
	return call(h, ctx, "Start", shortDeadline, func(ctx context.Context) (host.Process, error) {
		var quoted strings.Builder
		for _, a := range args {
			quoted.WriteString(" " + shell.Quote(a))
		}
		// The nonce marks the beginning of the program's output, because a login shell may print
		// something first.
		nonce := newSuffix()
		text := fmt.Sprintf("PATH=%s\nLC_ALL=C\nexport PATH LC_ALL\necho %s starts\nexec%s 2>&1\n", shell.Quote(h.path), nonce, quoted.String())
		session, err := h.transport.StartBulk(ctx, shell.Command(h.shellPath, h.sudo, len(text)))
		if err != nil {
			return nil, fmt.Errorf("start %s: %w", args[0], err)
		}
		drain(session, h.budget, args[0])
		p := &process{session: session, nonce: nonce, name: args[0], budget: h.budget}
		// This text is written before anything else: what follows it is the input of the
		// program.
		wrote := make(chan error, 1)
		go func() {
			_, err := session.Stdin().Write([]byte(text))
			wrote <- err
		}()
		select {
		case err = <-wrote:
		case <-ctx.Done():
			err = ctx.Err()
		}
		if err != nil {
			session.Close()
			return nil, fmt.Errorf("start %s: %w: %w", args[0], err, host.ErrUnreachable)
		}
		return p, nil
	})
}

type process struct {
	session link.Session
	nonce   string
	name    string
	budget  *budget.Account
	begun   bool // Read has found the nonce
	once    sync.Once
}

// Read skips what the login shell printed before the program.
func (p *process) Read(b []byte) (int, error) {
	if !p.begun {
		if err := skipTo(p.session.Stdout(), p.nonce+" starts\n", p.budget, "the login shell before "+p.name); err != nil {
			return 0, p.end(err)
		}
		p.begun = true
	}
	n, err := p.session.Stdout().Read(b)
	if n == 0 && err != nil {
		err = p.end(err)
	}
	return n, err
}

// end distinguishes the end of the program, which has an exit code, from the end of the
// connection.
func (p *process) end(err error) error {
	var much *budget.ExceededError
	if errors.As(err, &much) {
		p.session.Close()
		return err
	}
	if _, waitErr := p.session.Wait(); waitErr == nil && errors.Is(err, io.EOF) {
		return io.EOF
	}
	return fmt.Errorf("the session ended: %w: %w", err, host.ErrUnreachable)
}

func (p *process) Write(b []byte) (int, error) { return p.session.Stdin().Write(b) }

// Close ends the session, and with it the program's input.
func (p *process) Close() error {
	p.once.Do(func() { p.session.Close() })
	return nil
}
