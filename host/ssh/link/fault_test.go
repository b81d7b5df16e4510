package link

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// These tests use the clock of synctest, which also fails a test that leaves a goroutine behind.

// up waits for the link and returns the time when it came up.
func up(t *testing.T, l *Link) time.Time {
	t.Helper()
	return until(t, l, true)
}

func until(t *testing.T, l *Link, want bool) time.Time {
	t.Helper()
	for timeout := time.After(time.Hour); ; {
		changed := l.Changed()
		if s := l.State(); s.Up == want {
			return time.Now()
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatalf("an hour later the link's state is %+v", l.State())
		}
	}
}

func TestSilentMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		l := b.link(t)
		start(t, l)
		ctx := t.Context()
		up(t, l)
		c, err := l.Dial(ctx, "unix", "/echo")
		testutil.Must(t, err)
		p, err := l.Start(ctx, "cat")
		testutil.Must(t, err)
		ln, err := l.Listen(ctx, "tcp", "127.0.0.1:0")
		testutil.Must(t, err)
		says(t, c, "hello")
		time.Sleep(time.Minute) // keepalives keep it up
		if s := l.State(); !s.Up || s.RTT < 0 || time.Since(s.Heard) > 3*time.Second || len(b.attempts()) != 1 {
			t.Fatalf("after a quiet minute: %+v, %d attempts", s, len(b.attempts()))
		}

		b.wire(0).swallow()
		b.down.Store(true)
		began := time.Now()
		failed := make(chan error, 5)
		go func() { _, err := c.Read(make([]byte, 1)); failed <- err }()
		go func() { _, err := p.Stdout().Read(make([]byte, 1)); failed <- err }()
		go func() { _, err := p.Wait(); failed <- err }()
		go func() { _, err := ln.Accept(); failed <- err }()
		go func() { _, err := l.Dial(context.Background(), "unix", "/echo"); failed <- err }()
		until(t, l, false)
		if after := time.Since(began); after < 5*time.Second || after > 10*time.Second {
			t.Errorf("the silence was noticed after %s", after)
		}
		synctest.Wait()
		for range cap(failed) {
			select {
			case err := <-failed:
				if !errors.Is(err, host.ErrUnreachable) {
					t.Errorf("not an error of the link: %v", err)
				}
			default:
				t.Error("a call did not end with the link")
			}
		}
		if _, err := c.Write([]byte("x")); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("a write after it: %v", err)
		}
		if err := l.State().Err; err == nil || !strings.Contains(err.Error(), "no answer for 9 s") {
			t.Errorf("the state's error is %v", err)
		}
		_, err = l.Dial(ctx, "unix", "/echo")
		if !errors.Is(err, host.ErrUnreachable) || !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "ssh: no connection to 10.0.0.7:22 for 10 s") {
			t.Errorf("a call while it is down: %v", err)
		}

		c.Close()
		p.Close()
		b.down.Store(false)
		if c, err = l.Dial(ctx, "unix", "/echo"); err != nil {
			t.Fatal(err)
		}
		says(t, c, "again")
		c.Close()
	})
}

// TestOutage: the host is down for 20 s, then for 10 min.
func TestOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		l := b.link(t)
		start(t, l)
		up(t, l)
		if _, err := l.DialBulk(t.Context(), "unix", "/echo"); err != nil {
			t.Fatal(err)
		}
		for _, away := range []time.Duration{20 * time.Second, 10 * time.Minute} {
			time.Sleep(time.Minute)
			before := len(b.attempts())
			b.down.Store(true)
			for i := range b.wires {
				b.wire(i).cut()
			}
			began := until(t, l, false)
			time.Sleep(away)
			b.down.Store(false)
			late := up(t, l).Sub(began) - away
			allowed := 5 * time.Second
			if away > early {
				allowed = maxDelay
			}
			if late > allowed {
				t.Errorf("after %s away it took %s", away, late)
			}
			tries := b.attempts()[before:]
			for i, at := range tries[1:] {
				gap := at.Sub(tries[i])
				if gap < minDelay || gap > allowed {
					t.Errorf("%s between attempts %d and %d of the outage of %s", gap, i, i+1, away)
				}
			}
			if most := int(away/(20*time.Second)) + 20; len(tries) > most || len(tries) < 4 {
				t.Errorf("%d attempts in %s", len(tries), away)
			}
		}
		if b.most != 1 {
			t.Errorf("%d attempts in flight at once", b.most)
		}
	})
}

func TestRefusedLogin(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*lab)
		is    func(error) bool
		says  string
	}{
		"key": {func(b *lab) { b.target.Key = privateKey(t, newKey(t)) },
			func(err error) bool { var e *endpoint.AuthError; return errors.As(err, &e) }, "authorized_keys"},
		"host key": {func(b *lab) { key := b.target.Key; b.pin(t, newKey(t)); b.target.Key = key },
			func(err error) bool {
				var e *endpoint.HostKeyError
				return errors.As(err, &e) && e.Problem == "changed"
			}, "bowline host scan 10.0.0.7"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newLab(t)
				right := *b.target
				c.spoil(b)
				l := b.link(t)
				start(t, l)
				time.Sleep(time.Second)
				_, err := l.Dial(t.Context(), "unix", "/echo") // returns after the second attempt
				began := time.Now()
				_, again := l.Dial(t.Context(), "unix", "/echo")
				_, bulk := l.DialBulk(t.Context(), "unix", "/echo")
				for _, err := range []error{err, again, bulk} {
					if !c.is(err) || !errors.Is(err, host.ErrUnreachable) || !strings.Contains(err.Error()+"\n"+hint.Of(err), c.says) {
						t.Errorf("a call gave %v", err)
					}
				}
				if waited := time.Since(began); waited > 0 || !c.is(l.State().Err) {
					t.Errorf("the calls waited %s for an attempt that is far off; %v", waited, l.State().Err)
				}
				time.Sleep(time.Hour)
				tries := b.attempts()
				if len(tries) < 12 || len(tries) > 22 {
					t.Errorf("%d attempts in an hour", len(tries))
				}
				for i, at := range tries[1:] {
					if gap := at.Sub(tries[i]); gap < 8*time.Second || gap > maxAuthDelay+time.Second {
						t.Errorf("%s between attempts %d and %d", gap, i, i+1)
					}
				}
				b.targetMu.Lock()
				*b.target = right
				b.targetMu.Unlock()
				now := time.Now()
				if late := up(t, l).Sub(now); late > maxAuthDelay {
					t.Errorf("it took %s after the correction", late)
				}
			})
		})
	}
}

// TestBriefConnections: the login works and the connection ends at once.
func TestBriefConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		b.brief.Store(true)
		l := b.link(t)
		start(t, l)
		time.Sleep(10 * time.Minute)
		if n := len(b.attempts()); n > 50 || n < 10 {
			t.Errorf("%d attempts in 10 min", n)
		}
		b.brief.Store(false)
		time.Sleep(maxDelay)
		up(t, l)
	})
}

func TestGivenUpCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		l := b.link(t)
		start(t, l)
		up(t, l)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		began := time.Now()
		_, err := l.Dial(ctx, "unix", "/slow")
		var late *UnansweredError
		if !errors.As(err, &late) || late.Silence > 3*time.Second {
			t.Errorf("the error is %v", err)
		}
		if time.Since(began) != 2*time.Second || !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		began = time.Now()
		if _, err = l.Dial(context.Background(), "unix", "/slow"); time.Since(began) != l.limits.call || !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("without a deadline, after %s: %v", time.Since(began), err)
		}
		close(b.release)
		for range 2 {
			late := <-b.opened
			if n, err := late.Read(make([]byte, 1)); n != 0 || err != io.EOF {
				t.Errorf("the channel that opened late gave %d, %v", n, err)
			}
		}
		if !l.State().Up {
			t.Error("a slow socket took the link down")
		}
	})
}

func TestAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		l := b.link(t)
		start(t, l)
		for path, c := range map[string]struct {
			is   error
			says string
		}{
			"/refused":   {syscall.ECONNREFUSED, "Connection refused"},
			"/forbidden": {os.ErrPermission, "AllowStreamLocalForwarding"},
			"/failed":    {nil, "nothing listens there"},
		} {
			_, err := l.Dial(t.Context(), "unix", path)
			var answer *ssh.OpenChannelError
			if !errors.As(err, &answer) || errors.Is(err, host.ErrUnreachable) || c.is != nil && !errors.Is(err, c.is) ||
				!strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), path+" at 10.0.0.7:22") {
				t.Errorf("%s: %v", path, err)
			}
		}
		if _, err := l.Listen(t.Context(), "unix", "/x.sock"); err == nil || errors.Is(err, host.ErrUnreachable) || !strings.Contains(err.Error(), "AllowStreamLocalForwarding") {
			t.Errorf("a refused forward: %v", err)
		}
		if _, err := l.Subsystem(t.Context(), "sftp"); err == nil || errors.Is(err, host.ErrUnreachable) || !strings.Contains(err.Error(), "Subsystem") {
			t.Errorf("a refused subsystem: %v", err)
		}
		for _, a := range [][2]string{{"udp", "1.1.1.1:1"}, {"unix", "x"}, {"tcp", "nowhere"}, {"tcp", "a:http"}, {"tcp", "a:65536"}} {
			if _, err := l.Dial(t.Context(), a[0], a[1]); err == nil || errors.Is(err, host.ErrUnreachable) {
				t.Errorf("%v: %v", a, err)
			}
		}
	})
}

// TestFull: sshd counts a session until its program has ended, so after programs were given up it may
// refuse the next one for a while.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		l := b.link(t)
		start(t, l)
		up(t, l)
		started := func(limit time.Duration) (took time.Duration, err error) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			began := time.Now()
			p, err := l.Start(ctx, "cat")
			if err == nil {
				p.Close()
			}
			return time.Since(began), err
		}
		refused := func(what string, err error) {
			t.Helper()
			if err == nil || errors.Is(err, host.ErrUnreachable) || !strings.Contains(err.Error(), "MaxSessions") {
				t.Errorf("%s: %v", what, err)
			}
		}

		b.full.Store(true)
		took, err := started(10 * time.Second)
		refused("a host that allows no session", err)
		if took > time.Millisecond {
			t.Errorf("a host that allows no session was asked for %s", took)
		}

		b.full.Store(false)
		if _, err := started(10 * time.Second); err != nil {
			t.Fatal(err)
		}
		b.full.Store(true)
		time.AfterFunc(3*time.Second, func() { b.full.Store(false) })
		if took, err := started(10 * time.Second); err != nil || took < 3*time.Second || took > 4*time.Second {
			t.Errorf("when the host had room again after 3 s: %v after %s", err, took)
		}

		b.full.Store(true)
		took, err = started(10 * time.Second)
		refused("a host without room", err)
		if took != 10*time.Second {
			t.Errorf("a host without room was asked for %s", took)
		}
		time.AfterFunc(3*time.Second, func() { b.wire(0).cut() })
		if took, err := started(10 * time.Second); !errors.Is(err, host.ErrUnreachable) || took != 3*time.Second {
			t.Errorf("when the connection ended after 3 s: %v after %s", err, took)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		idle := b.link(t)
		idle.Close()
		if err := idle.Run(t.Context()); err != nil || len(b.attempts()) != 0 {
			t.Errorf("Run after Close: %v, %d attempts", err, len(b.attempts()))
		}
		if _, err := idle.Dial(t.Context(), "unix", "/echo"); !errors.Is(err, host.ErrUnreachable) || !errors.Is(err, errClosed) {
			t.Errorf("a call on a closed link: %v", err)
		}

		l := b.link(t)
		start(t, l)
		c, err := l.DialBulk(t.Context(), "unix", "/echo")
		testutil.Must(t, err)
		if err := l.Run(t.Context()); err == nil {
			t.Error("a second Run did not fail")
		}
		l.Close()
		l.Close()
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("a read after Close: %v", err)
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := c.Close(); err != net.ErrClosed {
			t.Errorf("a second Close: %v", err)
		}
		if l.State().Up {
			t.Error("it is up after Close")
		}

		// During an attempt, and during the wait for the next.
		for _, wait := range []time.Duration{0, 3 * time.Second} {
			b.down.Store(true)
			l := b.link(t)
			start(t, l)
			time.Sleep(wait)
			l.Close()
		}
	})
}

func TestBulkOnFirstUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		l := b.link(t)
		start(t, l)
		up(t, l)
		time.Sleep(time.Minute)
		if n := len(b.attempts()); n != 1 {
			t.Fatalf("%d connections before the first bulk call", n)
		}
		for range 3 {
			c, err := l.DialBulk(t.Context(), "unix", "/echo")
			testutil.Must(t, err)
			says(t, c, "bulk")
			c.Close()
		}
		if n := len(b.attempts()); n != 2 {
			t.Fatalf("%d connections after it", n)
		}
		p, err := l.StartBulk(t.Context(), "cat")
		testutil.Must(t, err)
		defer p.Close()
		if n := len(b.attempts()); n != 2 {
			t.Fatalf("%d connections after a program", n)
		}
		// Without use it is not made again; the control connection is not affected.
		b.wire(1).cut()
		if _, err := p.Wait(); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("a program after the end of the bulk connection: %v", err)
		}
		time.Sleep(time.Minute)
		if n := len(b.attempts()); n != 2 || !l.State().Up {
			t.Errorf("%d connections after the bulk one was cut", n)
		}
		if _, err := l.DialBulk(t.Context(), "unix", "/echo"); err != nil {
			t.Error(err)
		}
	})
}
