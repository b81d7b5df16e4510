package shell

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// DefaultPath is the PATH of the scripts: the usual directories, and those of NixOS.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/run/wrappers/bin:/run/current-system/sw/bin"

// straggler is how long to wait for output that a process holds open after its script has ended.
const straggler = time.Second

// Config says how to start a shell.
type Config struct {
	// Start starts a command line in the login shell. Its errors wrap host.ErrUnreachable unless
	// they are an answer of the host.
	Start func(ctx context.Context, command string) (link.Session, error)
	// Sudo runs the shell as root with "sudo -n".
	Sudo bool
	// Shell is the path of a POSIX shell on the host; /bin/sh by default.
	Shell string
	// Path is the PATH of the scripts; DefaultPath by default.
	Path string
	// Budget counts the output of the host; may be nil.
	Budget *budget.Account
	// Shells is the maximum number of shells of a Pool; MaxShells by default.
	Shells int
}

// Shell is one sh on the host. It serves one request at a time.
type Shell struct {
	session link.Session
	stdout  *stream
	stderr  *stream
	budget  *budget.Account
	known   map[string]int // scripts that it was sent
	used    bool           // it has answered once
	given   chan struct{}  // after a script was given up: closed when left is known
	left    int            // process group of that script; 0: unknown
	ended   chan struct{}  // closed when the program has ended
	code    int            // its exit code, after ended; -1 if the link ended first

	once   sync.Once // the session is closed
	mu     sync.Mutex
	broken error
}

// Open starts a shell; the first request shows whether it runs.
func Open(ctx context.Context, c Config) (*Shell, error) {
	if c.Shell == "" {
		c.Shell = "/bin/sh"
	}
	if c.Path == "" {
		c.Path = DefaultPath
	}
	// The name of the connection is in the environment of the loop and of everything that it
	// runs. The next holder of the host's lock finds our remaining processes by it.
	text := Connection + "export BOWLINE_CONNECTION=$sshd.$since.\nexec " + Quote(c.Shell) + " -c " + Quote(loop) +
		" sh " + Quote(c.Shell) + " " + Quote(c.Path) + "\n"
	session, err := c.Start(ctx, Command(c.Shell, c.Sudo, len(text)))
	if err != nil {
		return nil, err
	}
	s := &Shell{session: session, budget: c.Budget, known: map[string]int{}, ended: make(chan struct{})}
	s.stdout = s.read("output", session.Stdout())
	s.stderr = s.read("error", session.Stderr())
	// Noticed at once, so that no caller gets a shell from the pool that ended while it was
	// idle.
	s.budget.Go("a shell", func() {
		defer close(s.ended)
		var err error
		if s.code, err = session.Wait(); err != nil {
			s.code = -1
		}
		s.fail(fmt.Errorf("shell: it has ended (exit code %d)", s.code))
	})
	// The text precedes the first request, which also finds out why it may not have arrived. A
	// link that accepts no data must not block the caller.
	written := make(chan struct{})
	s.budget.Go("a shell", func() {
		defer close(written)
		_, _ = session.Stdin().Write([]byte(text))
	})
	select {
	case <-written:
		return s, nil
	case <-ctx.Done():
		session.Close()
		return nil, ctx.Err()
	}
}

// read reads a stream of the session until it ends; if the stream exceeds a budget, it ends the
// session.
func (s *Shell) read(name string, from io.Reader) *stream {
	st := &stream{name: name, budget: s.budget}
	s.budget.Go("what a shell prints", func() {
		st.read(from)
		// The request reports any other end of a stream.
		var much *budget.ExceededError
		if errors.As(st.err, &much) {
			s.fail(st.err)
			s.end()
		}
	})
	return st
}

// Close ends the session. What the shell runs ends at its time limit.
func (s *Shell) Close() error {
	s.fail(errors.New("shell: closed"))
	return s.end()
}

// end closes the session, once.
func (s *Shell) end() (err error) {
	s.once.Do(func() { err = s.session.Close() })
	return err
}

func (s *Shell) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = err
	}
}

// Broken is the reason why the shell accepts no more requests; nil if it does.
func (s *Shell) Broken() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken
}

// Do runs one request. After any error of Do the shell is broken and closed. If ctx ends first,
// Do returns at once, and whether the script continues to its limit is unknown. If the shell has
// ended, the error wraps host.ErrUnreachable.
func (s *Shell) Do(ctx context.Context, r Request) (Result, error) {
	if err := r.complete(); err != nil {
		return Result{}, err
	}
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if err := link.Allows(ctx, s.session); err != nil {
		return Result{}, err
	}
	// A shell that ended before its first request may have left a message.
	if err := s.Broken(); err != nil && s.used {
		return Result{}, unreachable(err)
	}
	if r.Inside {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, r.Limit)
		defer cancel()
	}
	res, err := s.do(ctx, &r)
	if err != nil {
		s.fail(err)
	}
	if s.Broken() != nil && s.given == nil {
		s.session.Close()
	}
	return res, err
}

// giveUp closes the session in the background, as soon as the script has reported its process
// group, or after a while.
func (s *Shell) giveUp(stdout *collector) {
	s.given = make(chan struct{})
	s.budget.Go("a shell", func() {
		defer close(s.given)
		t := time.NewTimer(2 * straggler)
		defer t.Stop()
		select {
		case <-stdout.grouped:
		case <-s.ended:
		case <-t.C:
		}
		stdout.mu.Lock()
		s.left = stdout.group
		stdout.mu.Unlock()
		s.session.Close()
	})
}

func (s *Shell) do(ctx context.Context, r *Request) (Result, error) {
	nonce := newNonce()
	exit := make(chan int, 2) // each stream reports it
	onExit := func(code int) { exit <- code }
	stdout := &collector{nonce: []byte(nonce), max: r.MaxStdout, budget: s.budget, onExit: onExit, grouped: make(chan struct{}),
		whole: r.Whole, kind: r.Kind, turn: r.turn}
	stderr := &collector{nonce: []byte(nonce), max: r.MaxStderr, budget: s.budget, onExit: onExit}
	streams := make(chan error, 2)
	s.stdout.attach(stdout, streams)
	s.stderr.attach(stderr, streams)
	written := make(chan error, 1)
	s.budget.Go("a request to a shell", func() {
		err := budget.ErrPanicked
		defer func() { written <- err }()
		err = s.send(r, nonce)
	})

	result := Result{Code: -1}
	fill := func() Result {
		result.Stdout, _, _ = stdout.output()
		result.Stderr, _, _ = stderr.output()
		return result
	}
	var late <-chan time.Time
	open, reported := 2, 0
	for open > 0 {
		select {
		case result.Code = <-exit:
			if reported++; reported < 2 || !r.Foreign {
				continue
			}
			t := time.NewTimer(straggler)
			defer t.Stop()
			late = t.C
		case err := <-written:
			if err != nil {
				return Result{}, s.gone(err, streams, open, stdout, stderr)
			}
			written = nil
		case err := <-streams:
			open--
			if err != nil {
				return Result{}, s.gone(err, streams, open, stdout, stderr)
			}
		case <-late:
			// A process that the script left behind holds its output open. Everything that the
			// script itself wrote has arrived, so there is an answer; the shell cannot continue.
			s.fail(errors.New("shell: a process left behind holds the output"))
			return fill(), nil
		case <-ctx.Done():
			s.giveUp(stdout)
			return Result{}, ctx.Err()
		}
	}
	for drained := false; !drained; {
		select {
		case result.Code = <-exit:
			reported++
		default:
			drained = true
		}
	}
	if reported < 2 {
		return Result{}, unreachable(errors.New("shell: an answer without an exit code"))
	}
	if written != nil {
		// The remote shell has read everything, or it could not have answered.
		if err := <-written; err != nil {
			return Result{}, s.gone(err, streams, open, stdout, stderr)
		}
	}
	s.used = true
	return fill(), nil
}

// send writes the request; the script text only if this shell does not have it yet.
func (s *Shell) send(r *Request, nonce string) error {
	var b bytes.Buffer
	id, known := s.known[r.Script]
	if !known {
		id = len(s.known) + 1
		s.known[r.Script] = id
		b.WriteString(r.header(nonce, id, len(r.Script)))
		b.WriteString(r.Script)
	} else {
		b.WriteString(r.header(nonce, id, 0))
	}
	if r.embedded() {
		_, err := s.session.Stdin().Write(b.Bytes())
		return err
	}
	// A small request is sent in one packet.
	if len(r.Stdin) <= 16<<10 {
		b.Write(r.Stdin)
		_, err := s.session.Stdin().Write(b.Bytes())
		return err
	}
	if _, err := s.session.Stdin().Write(b.Bytes()); err != nil {
		return err
	}
	_, err := s.session.Stdin().Write(r.Stdin)
	return err
}

// gone explains why a stream ended. If a shell never answered and has an exit code, that is an
// answer of the host ("sudo: a password is required"). In all other cases it is unknown what
// became of the request.
func (s *Shell) gone(err error, streams <-chan error, open int, stdout, stderr *collector) error {
	// Its messages may still be on their way.
	ended, late := -1, time.After(straggler)
	for hasEnded := s.ended; hasEnded != nil || open > 0; {
		select {
		case <-hasEnded:
			ended, hasEnded = s.code, nil
			continue
		case <-streams:
			open--
			continue
		case <-late:
		}
		break
	}
	_, begun, out := stdout.output()
	_, begunErr, errOut := stderr.output()
	if !s.used && !begun && !begunErr && ended >= 0 {
		said := strings.TrimSpace(string(errOut) + "\n" + string(out))
		return fmt.Errorf("the host's shell did not start: exit code %d: %s", ended, said)
	}
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return unreachable(fmt.Errorf("the shell ended during a request (exit code %d): %w", ended, err))
}

func unreachable(err error) error {
	if errors.Is(err, host.ErrUnreachable) {
		return err
	}
	return fmt.Errorf("%w: %w", host.ErrUnreachable, err)
}
