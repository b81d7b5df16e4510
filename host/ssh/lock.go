package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// sessionSuffix is the suffix of the file beside a lock that names its session.
const sessionSuffix = ".session"

const (
	maxHolder = 64 << 10
	// beatEvery is the interval of the beats that show the host that we are alive.
	beatEvery = 3 * time.Second
	// lostAfter is how long we consider the lock ours after we sent a beat that was answered.
	// The host releases it 15 s after the last beat that it received, which is later than we
	// sent it. So we stop before another process can start.
	lostAfter = 10 * time.Second
)

// lockShell is what the host's shell runs before the script of a lock, which it reads from the same
// input: bash if the host has it, because it waits for a beat without another process. With --norc it
// does not read ~/.bashrc, which a bash below sshd reads otherwise; with -p it reads no other file and
// imports no function that the environment names.
const lockShell = `PATH=%s
LC_ALL=C
export PATH LC_ALL
! bash --norc -p -c : </dev/null >/dev/null 2>&1 || exec bash --norc -p -c '%[2]s'
%[2]s
`

// Lock is flock(1) in a session of its own that lives as long as the lock (see scripts/lock.sh):
// the host releases the lock when the session or sshd ends, or when it has received no beat for
// 15 s. The file path.session beside the lock names the session's process and its connection.
// Takeover uses it, and so does the next holder, who ends what still runs over that connection.
func (h *Host) Lock(ctx context.Context, p string, holder []byte) (host.Lock, error) {
	return call(h, ctx, "Lock", shortDeadline, func(ctx context.Context) (host.Lock, error) {
		if err := machine.Absolute("lock", p); err != nil {
			return nil, err
		}
		if len(holder) > maxHolder {
			return nil, fmt.Errorf("lock %s: a holder of %d bytes; at most %d", p, len(holder), maxHolder)
		}
		l, err := h.lock(ctx, path.Clean(p), holder)
		if err != nil {
			return nil, err
		}
		h.held.Store(path.Clean(p), true)
		return l, nil
	})
}

func (h *Host) lock(ctx context.Context, p string, holder []byte) (*lock, error) {
	nonce := newSuffix()
	text := fmt.Sprintf("path=%s\ndir=%s\nbytes=%d\nnonce=%s\n",
		shell.Quote(p), shell.Quote(path.Dir(p)), len(holder), nonce) + shell.Connection + scriptLock
	first := fmt.Sprintf(lockShell, shell.Quote(h.path), shell.Read(len(text)))
	began := time.Now()
	session, err := h.transport.Start(ctx, shell.Command(h.shellPath, h.sudo, len(first)))
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", p, err)
	}
	stderr := drain(session, h.budget, "the lock's session")
	h.budget.Go("the lock's session", func() { _, _ = session.Stdin().Write(append([]byte(first+text), holder...)) }) // if it fails, the output ends
	type answer struct {
		word string
		rest []byte
		err  error
	}
	out := newReply(session.Stdout(), nonce, h.budget, "the lock's session")
	answers := make(chan answer, 1)
	h.budget.Go("the lock's session", func() {
		a := answer{err: budget.ErrPanicked}
		defer func() { answers <- a }()
		if a.word, a.err = out.next(); a.err == nil && a.word == "locked" {
			a.rest, _ = io.ReadAll(io.LimitReader(out.r, maxHolder))
		}
	})
	select {
	case a := <-answers:
		switch {
		case a.err == nil && a.word == "held":
			out.wanted()
			l := &lock{session: session, out: out, budget: h.budget, answered: began,
				lost: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
			go l.watch()
			return l, nil
		case a.err == nil && a.word == "locked":
			session.Close()
			return nil, &host.LockedError{Path: p, Holder: a.rest}
		}
		var much *budget.ExceededError
		if errors.As(a.err, &much) {
			session.Close()
			return nil, fmt.Errorf("lock %s: %w", p, much)
		}
		code := waitCode(ctx, session, h.budget)
		why := stderr.text(ctx)
		session.Close()
		if code < 0 {
			return nil, fmt.Errorf("lock %s: the session ended: %w", p, host.ErrUnreachable)
		}
		return nil, failure("lock", p, shell.Result{Stderr: why, Code: code})
	case <-ctx.Done():
		session.Close() // the script then ends at its first read
		return nil, fmt.Errorf("lock %s: %w", p, ctx.Err())
	}
}

// waitCode returns the exit code of a session that has closed its output; -1 if there is none.
func waitCode(ctx context.Context, s link.Session, a *budget.Account) int {
	code := make(chan int, 1)
	a.Go("the end of a session", func() {
		c := -1
		defer func() { code <- c }()
		if ended, err := s.Wait(); err == nil {
			c = ended
		}
	})
	select {
	case c := <-code:
		return c
	case <-ctx.Done():
		return -1
	}
}

// lock is a held lock.
type lock struct {
	session  link.Session
	out      *reply
	budget   *budget.Account
	answered time.Time // when the last answered beat was sent

	lost, stop, done chan struct{}
	once             sync.Once
	err              error
}

// watch sends beats until one is not answered in time, or until Close.
func (l *lock) watch() {
	defer l.budget.Recover("the lock's session")
	defer close(l.done)
	answers := make(chan struct{}, 1)
	ended := make(chan struct{})
	l.budget.Go("the lock's session", func() {
		defer close(ended)
		for {
			if w, err := l.out.next(); err != nil || w != "beat" {
				return
			}
			select {
			case answers <- struct{}{}:
				l.out.wanted()
			default: // an answer without a beat
			}
		}
	})
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	sent := time.Time{} // of the beat that is not answered yet
	for {
		// Check the wall clock too: the monotonic clock stops while a laptop sleeps.
		late := time.NewTimer(min(time.Until(l.answered.Add(lostAfter)), time.Until(l.answered.Round(0).Add(lostAfter))))
		select {
		case <-tick.C:
			if sent.IsZero() && time.Since(l.answered.Round(0)) < lostAfter {
				sent = time.Now()
				l.budget.Go("the lock's session", func() { _, _ = l.session.Stdin().Write([]byte("beat\n")) })
			}
		case <-answers:
			if !sent.IsZero() && time.Since(sent.Round(0)) < lostAfter {
				l.answered, sent = sent, time.Time{}
			}
		case <-late.C:
			l.lose()
			return
		case <-ended:
			l.lose()
			return
		case <-l.stop:
			late.Stop()
			return
		}
		late.Stop()
	}
}

func (l *lock) lose() {
	close(l.lost)
	l.session.Close()
}

func (l *lock) Lost() <-chan struct{} { return l.lost }

// Close releases the lock and empties the file; it waits a short time for the confirmation of
// the host. If the lock is lost, there is nothing to release.
func (l *lock) Close() error {
	l.once.Do(func() {
		close(l.stop)
		<-l.done
		select {
		case <-l.lost:
			return
		default:
		}
		ended := make(chan struct{})
		l.budget.Go("the lock's session", func() {
			defer close(ended)
			_, _ = l.session.Stdin().Write([]byte("close\n"))
			_, _ = l.session.Wait()
		})
		t := time.NewTimer(shortDeadline)
		defer t.Stop()
		select {
		case <-ended:
		case <-t.C:
			l.err = fmt.Errorf("close a lock: no answer: %w", host.ErrUnreachable)
		}
		l.session.Close()
	})
	return l.err
}

// Takeover frees the lock at path: it ends the session that Lock recorded beside it, with its
// connection and every request that was started over that. It does so only if that process still
// runs, is the recorded one and holds the lock. It is for a driver that knows the holder to be
// its own former process, or that an operator told to take over; the former driver learns within
// 10 s that its lock is lost. No error if no process holds the lock; an error if a holder of
// another kind does (host/local).
func (h *Host) Takeover(ctx context.Context, p string) error {
	return run(h, ctx, "Takeover", shortDeadline, func(ctx context.Context) error {
		if err := machine.Absolute("take over", p); err != nil {
			return err
		}
		_, err := h.script(ctx, "take over", path.Clean(p), scriptTakeover, []string{path.Clean(p)}, nil)
		return err
	})
}
