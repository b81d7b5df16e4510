package shell_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/ssh/internal/shtest"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// patience is enough for a very busy host.
const patience = time.Minute

// flavours are the shells that every test runs with, and their PATH.
func flavours(t testing.TB) map[string]shell.Config {
	f := map[string]shell.Config{"sh": {}}
	for _, name := range []string{"dash", "bash"} {
		if p, err := exec.LookPath(name); err == nil {
			f[name] = shell.Config{Shell: p}
		} else {
			t.Logf("not with %s: %v", name, err)
		}
	}
	if dir, sh := shtest.Busybox(t); dir != "" {
		f["busybox"] = shell.Config{Shell: sh, Path: dir + ":" + shell.DefaultPath}
	}
	return f
}

func each(t *testing.T, f func(t *testing.T, p *shell.Pool, tr *shtest.Transport)) {
	for name, c := range flavours(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, tr := open(t, c)
			f(t, p, tr)
		})
	}
}

func open(t testing.TB, c shell.Config) (*shell.Pool, *shtest.Transport) {
	tr := &shtest.Transport{}
	c.Start = tr.Start
	p := shell.NewPool(c)
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), tr.Close()); err != nil {
			t.Error(err)
		}
		for _, s := range tr.Sessions() {
			testutil.Receive(t, s.Done(), patience, "a shell does not end with its session")
		}
	})
	return p, tr
}

func do(t testing.TB, p *shell.Pool, r shell.Request) shell.Result {
	t.Helper()
	if r.Limit == 0 {
		r.Limit = patience
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	res, err := p.Do(ctx, r)
	testutil.Must(t, err)
	return res
}

func want(t testing.TB, r shell.Result, stdout, stderr string, code int) {
	t.Helper()
	if string(r.Stdout) != stdout || string(r.Stderr) != stderr || r.Code != code {
		t.Fatalf("stdout %.300q, stderr %.300q, code %d; want %.300q, %.300q, %d", r.Stdout, r.Stderr, r.Code, stdout, stderr, code)
	}
}

func TestRequests(t *testing.T) {
	each(t, func(t *testing.T, p *shell.Pool, tr *shtest.Transport) {
		for _, foreign := range []bool{false, true} {
			r := func(script string, args ...string) shell.Request {
				return shell.Request{Script: script, Args: args, Foreign: foreign}
			}
			with := func(r shell.Request, stdin string) shell.Request { r.Stdin = []byte(stdin); return r }
			want(t, do(t, p, r(`echo out; echo err >&2; exit 7`)), "out\n", "err\n", 7)
			want(t, do(t, p, r(`printf %s "$#:$1:$2:$3"`, "", "a'b\nc ", "\n")), "3::a'b\nc :\n", "", 0)
			want(t, do(t, p, with(r(`cat`), "in\x00\xff\n\n")), "in\x00\xff\n\n", "", 0)
			want(t, do(t, p, with(r(`:`), strings.Repeat("unread\n", 100_000))), "", "", 0)
			want(t, do(t, p, with(r(`head -c 3`), strings.Repeat("y", 300_000))), "yyy", "", 0)
			want(t, do(t, p, r(`cat`)), "", "", 0)
			want(t, do(t, p, r(`kill -TERM $$`)), "", "", 143)
			want(t, do(t, p, r(`set -u; $nowhere`)), "", string(do(t, p, r(`set -u; $nowhere`)).Stderr), 2|do(t, p, r(`set -u; $nowhere`)).Code)
			want(t, do(t, p, r(`umask; pwd; echo "$LC_ALL"`)), "0022\n/\nC\n", "", 0)
			// The whole standard input arrives, whatever its size.
			for _, n := range []int{1, 1 << 20, 1<<20 + 1, 5<<20 - 7} {
				want(t, do(t, p, with(r(`wc -c | tr -d ' '`), strings.Repeat("z", n))), fmt.Sprintln(n), "", 0)
			}
			// The script sees no variable and no descriptor of the loop.
			got := do(t, p, r(`env | grep -E '^(nonce|script|args|line|id)=' ; for d in 3 4 5 6 7 8; do [ ! -e /proc/self/fd/$d ] || ls -l /proc/self/fd/$d; done`))
			want(t, got, "", "", 0)
		}
		if n := len(tr.Sessions()); n != 1 {
			t.Errorf("%d shells were started for one request after another", n)
		}
	})
}

func TestOutputBeyondTheLimit(t *testing.T) {
	each(t, func(t *testing.T, p *shell.Pool, tr *shtest.Transport) {
		for _, foreign := range []bool{false, true} {
			res := do(t, p, shell.Request{Script: `head -c 3000000 /dev/zero; head -c 2000000 /dev/zero >&2`, Foreign: foreign, MaxStderr: 10})
			if len(res.Stdout) != shell.DefaultOutput || len(res.Stderr) != 10 || res.Code != 0 {
				t.Errorf("%d and %d bytes, code %d", len(res.Stdout), len(res.Stderr), res.Code)
			}
			want(t, do(t, p, shell.Request{Script: `echo on`}), "on\n", "", 0)
		}
	})
}

// TestFrames: any bytes pass in both directions, even if they look like frames, and nothing of
// one request appears in the next.
func TestFrames(t *testing.T) {
	for name, c := range flavours(t) {
		t.Run(name, func(t *testing.T) {
			p, _ := open(t, c)
			piece := rapid.OneOf(
				rapid.SliceOfN(rapid.Byte(), 0, 200),
				rapid.Map(rapid.StringMatching(`[0-9a-f]{32}[bxe][0-9]{0,3}\n`), func(s string) []byte { return []byte(s) }),
				rapid.SampledFrom([][]byte{{0}, []byte("\n"), []byte("'"), bytes.Repeat([]byte("\x00\n"), 40_000), []byte("EOF\n"), []byte("exit\n")}),
			)
			text := rapid.Map(rapid.SliceOfN(piece, 0, 4), func(p [][]byte) []byte { return bytes.Join(p, nil) })
			rapid.Check(t, func(t *rapid.T) {
				in, args := text.Draw(t, "stdin"), rapid.SliceOfN(rapid.Map(text, func(b []byte) string {
					return strings.ReplaceAll(string(b[:min(len(b), 5000)]), "\x00", "")
				}), 0, 3).Draw(t, "args")
				code := rapid.IntRange(0, 125).Draw(t, "code")
				unread := rapid.Bool().Draw(t, "unread")
				script, out := `code=$1; shift; cat; for a; do printf '%s|' "$a"; done >&2; exit $code`, string(in)
				if unread {
					script, out = `code=$1; shift; for a; do printf '%s|' "$a"; done >&2; exit $code`, ""
				}
				errs := ""
				for _, a := range args {
					errs += a + "|"
				}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				defer cancel()
				res, err := p.Do(ctx, shell.Request{Script: script, Args: append([]string{fmt.Sprint(code)}, args...), Stdin: in,
					Limit: patience, Foreign: rapid.Bool().Draw(t, "foreign")})
				testutil.Must(t, err)
				if string(res.Stdout) != out || string(res.Stderr) != errs || res.Code != code {
					t.Fatalf("stdout %.200q, stderr %.200q, code %d; want %.200q, %.200q, %d", res.Stdout, res.Stderr, res.Code, out, errs, code)
				}
			})
		})
	}
}

// TestTimeLimit: a script that exceeds its limit is killed with its whole group.
func TestTimeLimit(t *testing.T) {
	each(t, func(t *testing.T, p *shell.Pool, tr *shtest.Transport) {
		for _, foreign := range []bool{false, true} {
			file := filepath.Join(t.TempDir(), "pid")
			began := time.Now()
			res := do(t, p, shell.Request{Script: `sleep 1000 & echo $! >"$1"; wait`, Args: []string{file}, Limit: time.Second, Foreign: foreign})
			if took := time.Since(began); res.Code != 137 || took > patience {
				t.Errorf("code %d after %s", res.Code, took)
			}
			pid := testutil.ReadFile(t, file)
			wantGone(t, strings.TrimSpace(string(pid)))
			want(t, do(t, p, shell.Request{Script: `echo on`}), "on\n", "", 0)
		}
		if n := len(tr.Sessions()); n != 1 {
			t.Errorf("%d shells: a time limit costs none", n)
		}
	})
}

// wantGone waits until a process has ended; in a container without an init nothing may reap it.
func wantGone(t *testing.T, pid string) {
	t.Helper()
	deadline, tick := time.After(patience), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("process %s still runs: %s", pid, stat)
		case <-tick.C:
		}
	}
}

// TestStragglers: what a script leaves in its group is killed when it ends. If a process has
// left the group and holds the output open, the shell is lost, but not the answer.
func TestStragglers(t *testing.T) {
	each(t, func(t *testing.T, p *shell.Pool, tr *shtest.Transport) {
		file := filepath.Join(t.TempDir(), "pid")
		for _, foreign := range []bool{false, true} {
			want(t, do(t, p, shell.Request{Script: `sleep 1000 & echo $! >"$1"; echo done`, Args: []string{file}, Foreign: foreign}), "done\n", "", 0)
			pid, _ := os.ReadFile(file)
			wantGone(t, strings.TrimSpace(string(pid)))
		}
		if n := len(tr.Sessions()); n != 1 {
			t.Errorf("%d shells", n)
		}
		res := do(t, p, shell.Request{Script: `setsid sh -c 'echo $$ >"$1"; exec sleep 1000' sh "$1.away" & until [ -s "$1.away" ]; do :; done; echo done; exit 5`,
			Args: []string{file}, Foreign: true})
		pid, _ := os.ReadFile(file + ".away")
		away, err := strconv.Atoi(strings.TrimSpace(string(pid)))
		if err != nil || away < 2 {
			t.Fatalf("process %q, %v", pid, err)
		}
		defer syscall.Kill(away, syscall.SIGKILL)
		want(t, res, "done\n", "", 5)
		want(t, do(t, p, shell.Request{Script: `echo next`, Foreign: true}), "next\n", "", 0)
		if n := len(tr.Sessions()); n != 2 {
			t.Errorf("%d shells, want a second one", n)
		}
	})
}

// TestStragglersOutput: if a straggler holds the output open, the answer still has everything
// that the script wrote, however late the host passes it on.
func TestStragglersOutput(t *testing.T) {
	dir := t.TempDir()
	gate, file := filepath.Join(dir, "gate"), filepath.Join(dir, "away")
	cat, err := exec.LookPath("cat")
	testutil.Must(t, err)
	testutil.Must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	// The program that passes on a foreign program's output waits for the gate.
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "bin/cat"), []byte("#!/bin/sh\nuntil [ -e "+gate+" ]; do sleep 0.05; done\nexec "+cat+"\n"), 0o755))
	p, _ := open(t, shell.Config{Path: filepath.Join(dir, "bin") + ":" + shell.DefaultPath})
	// Longer than the wait for a straggler after the script has ended.
	opened := make(chan error, 1)
	time.AfterFunc(2*time.Second, func() { opened <- os.WriteFile(gate, nil, 0o644) })
	res := do(t, p, shell.Request{Script: `setsid sh -c 'echo $$ >"$1"; exec sleep 1000' sh "$1" & until [ -s "$1" ]; do :; done; echo done; echo bad >&2; exit 5`,
		Args: []string{file}, Foreign: true})
	pid, _ := os.ReadFile(file)
	away, err := strconv.Atoi(strings.TrimSpace(string(pid)))
	if err != nil || away < 2 {
		t.Fatalf("process %q, %v", pid, err)
	}
	defer syscall.Kill(away, syscall.SIGKILL)
	testutil.Must(t, <-opened)
	want(t, res, "done\n", "bad\n", 5)
}

// TestCancelled: the caller returns at once and the next request is served.
func TestCancelled(t *testing.T) {
	each(t, func(t *testing.T, p *shell.Pool, tr *shtest.Transport) {
		for i, stdin := range []int{0, 10 << 20} {
			started := filepath.Join(t.TempDir(), fmt.Sprint("started", i))
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() {
				_, err := p.Do(ctx, shell.Request{Script: `echo $$ >"$1.part"; mv "$1.part" "$1"; sleep 1000`, Args: []string{started}, Limit: time.Hour, Stdin: make([]byte, stdin)})
				done <- err
			}()
			waitFile(t, started)
			began := time.Now()
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) || errors.Is(err, host.ErrUnreachable) {
				t.Errorf("error %v", err)
			}
			if took := time.Since(began); took > patience/2 {
				t.Errorf("let go after %s", took)
			}
			want(t, do(t, p, shell.Request{Script: `echo next`}), "next\n", "", 0)
			pid := testutil.ReadFile(t, started)
			wantGone(t, strings.TrimSpace(string(pid)))
		}
	})
}

func waitFile(t *testing.T, path string) {
	t.Helper()
	testutil.Eventually(t, path+" appears", func() bool {
		_, err := os.Stat(path)
		return err == nil
	})
}

// TestShellDies: during a request the error says that the state is unknown; while idle, the
// caller does not notice.
func TestShellDies(t *testing.T) {
	each(t, func(t *testing.T, p *shell.Pool, tr *shtest.Transport) {
		started := filepath.Join(t.TempDir(), "started")
		done := make(chan error, 1)
		go func() {
			_, err := p.Do(context.Background(), shell.Request{Script: `: >"$1"; sleep 2`, Args: []string{started}, Limit: 3 * time.Second})
			done <- err
		}()
		waitFile(t, started)
		tr.Sessions()[0].Process.Kill()
		if err := <-done; !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("error %v", err)
		}
		want(t, do(t, p, shell.Request{Script: `echo next`}), "next\n", "", 0)
		idle := tr.Sessions()[1]
		idle.Process.Kill()
		<-idle.Done()
		// The pool gets the same event as this test, so not always first.
		for range 2 {
			res, err := p.Do(context.Background(), shell.Request{Script: `echo again`, Limit: patience})
			if err == nil {
				want(t, res, "again\n", "", 0)
			} else if !errors.Is(err, host.ErrUnreachable) {
				t.Error(err)
			}
		}
		want(t, do(t, p, shell.Request{Script: `echo again`}), "again\n", "", 0)
	})
}

func TestConcurrentRequests(t *testing.T) {
	each(t, func(t *testing.T, p *shell.Pool, tr *shtest.Transport) {
		var wg sync.WaitGroup
		for n := range 24 {
			wg.Go(func() {
				res, err := p.Do(context.Background(), shell.Request{Script: `cat; echo "$1" >&2`, Args: []string{fmt.Sprint(n)}, Stdin: []byte(fmt.Sprint(n)), Limit: patience})
				if err != nil || string(res.Stdout) != fmt.Sprint(n) || string(res.Stderr) != fmt.Sprintln(n) {
					t.Errorf("%d: %+v, %v", n, res, err)
				}
			})
		}
		wg.Wait()
		if n := len(tr.Sessions()); n > shell.MaxShells {
			t.Errorf("%d shells", n)
		}
	})
}

// TestStart: a greeting of the login shell does no harm. A shell that does not start reports the
// reason, which is an answer of the host.
func TestStart(t *testing.T) {
	ctx := context.Background()
	request := shell.Request{Script: `echo hello`, Limit: patience}
	start := func(before string) shell.Config {
		tr := &shtest.Transport{}
		t.Cleanup(func() { tr.Close() })
		return shell.Config{Start: func(ctx context.Context, command string) (link.Session, error) {
			return tr.Start(ctx, before+command)
		}}
	}
	p := shell.NewPool(start("echo Welcome to the machine; echo motd >&2; "))
	defer p.Close()
	want(t, do(t, p, request), "hello\n", "", 0)

	refused := shell.NewPool(start("echo sudo: a password is required >&2; exit 1; "))
	defer refused.Close()
	if _, err := refused.Do(ctx, request); err == nil || errors.Is(err, host.ErrUnreachable) || !strings.Contains(err.Error(), "a password is required") {
		t.Errorf("error %v", err)
	}
	failing := fmt.Errorf("dial: %w", host.ErrUnreachable)
	away := shell.NewPool(shell.Config{Start: func(context.Context, string) (link.Session, error) { return nil, failing }})
	defer away.Close()
	if _, err := away.Do(ctx, request); !errors.Is(err, failing) {
		t.Errorf("error %v", err)
	}
	testutil.Must(t, p.Close())
	if _, err := p.Do(ctx, request); !errors.Is(err, host.ErrUnreachable) {
		t.Errorf("after Close: %v", err)
	}
}

func TestBadRequests(t *testing.T) {
	p, tr := open(t, shell.Config{})
	for _, r := range []shell.Request{
		{Limit: patience}, {Script: ":"}, {Script: ":\x00", Limit: patience}, {Script: ":", Limit: patience, Args: []string{"\x00"}},
		{Script: ":", Limit: patience, Stdin: make([]byte, shell.MaxStdin+1)},
		{Script: ":", Limit: patience, Args: []string{strings.Repeat("x", 2<<20)}},
	} {
		if _, err := p.Do(context.Background(), r); err == nil || errors.Is(err, host.ErrUnreachable) {
			t.Errorf("%.60v: %v", r, err)
		}
	}
	want(t, do(t, p, shell.Request{Script: `echo on`}), "on\n", "", 0)
	if n := len(tr.Sessions()); n != 1 {
		t.Errorf("%d shells", n)
	}
}

func BenchmarkRequest(b *testing.B) {
	for name, c := range flavours(b) {
		for _, foreign := range []bool{false, true} {
			b.Run(fmt.Sprintf("%s/foreign=%v", name, foreign), func(b *testing.B) {
				p, _ := open(b, c)
				for b.Loop() {
					do(b, p, shell.Request{Script: `:`, Foreign: foreign})
				}
			})
		}
	}
}

// TestInsideIsLimited: a script inside the shell that uses too much CPU time or memory ends
// itself.
func TestInsideIsLimited(t *testing.T) {
	each(t, func(t *testing.T, p *shell.Pool, tr *shtest.Transport) {
		want(t, do(t, p, shell.Request{Script: `ulimit -S -t; ulimit -S -v`, Inside: true, Limit: 7 * time.Second}), "7\n1048576\n", "", 0)
		want(t, do(t, p, shell.Request{Script: `ulimit -S -v`}), "unlimited\n", "", 0)
		started := t.TempDir() + "/started"
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := p.Do(ctx, shell.Request{Script: `read -r pid rest </proc/self/stat; echo "$pid" >"$1.part"; mv "$1.part" "$1"; while :; do :; done`,
			Args: []string{started}, Inside: true, Limit: time.Second})
		if err == nil {
			t.Fatal("a script without an end has ended well")
		}
		pid := testutil.ReadFile(t, started)
		wantGone(t, strings.TrimSpace(string(pid)))
		if n := len(tr.Sessions()); n > 2 {
			t.Errorf("%d shells were started", n)
		}
	})
}

// TestInside: a script inside the shell is answered like any other, and leaves nothing behind in
// the shell.
func TestInside(t *testing.T) {
	each(t, func(t *testing.T, p *shell.Pool, tr *shtest.Transport) {
		r := func(script, input string, args ...string) shell.Request {
			return shell.Request{Script: script, Stdin: []byte(input), Args: args, Inside: true}
		}
		want(t, do(t, p, r(`echo out; echo err >&2; exit 7`, "")), "out\n", "err\n", 7)
		want(t, do(t, p, r(`printf %s "$#:$1:$2:$input"`, "a'b\n\\c", "", "x\ny")), "2::x\ny:a'b\n\\c", "", 0)
		for _, n := range []int{1, 2 << 10, 2<<10 + 1, 1 << 20, 3<<20 + 1} {
			want(t, do(t, p, r(`printf %s "$input" | wc -c | tr -d ' '`, strings.Repeat("z", n))), fmt.Sprintln(n), "", 0)
		}
		want(t, do(t, p, r(`set -eu; trap 'echo end' EXIT; false; echo no`, "")), "end\n", "", 1)
		want(t, do(t, p, r(`cat; exec printf done`, "unread")), "done", "", 0)
		want(t, do(t, p, r(`echo() { :; }; PATH= IFS=x; umask 077; cd /proc; set -fC; left=here`, "")), "", "", 0)
		want(t, do(t, p, r(`umask; pwd; echo "${left-}$LC_ALL${nonce-}"; ls -d /pro*`, "")), "0022\n/\nC\n/proc\n", "", 0)
		want(t, do(t, p, r(`for d in 3 4 5 6 7 8; do [ ! -e /proc/self/fd/$d ] || ls -l /proc/self/fd/$d; done`, "")), "", "", 0)
		if n := len(tr.Sessions()); n != 1 {
			t.Errorf("%d shells were started for one request after another", n)
		}
		for _, input := range []string{"line\n", "a\x00b"} {
			if _, err := p.Do(t.Context(), r(`:`, input)); err == nil {
				t.Errorf("the input %q was taken", input)
			}
		}
	})
}

// TestInsideIsEnded: when the caller or the limit gives up a script inside, the shell ends with
// everything that the script has started; another shell serves the next request.
func TestInsideIsEnded(t *testing.T) {
	each(t, func(t *testing.T, p *shell.Pool, tr *shtest.Transport) {
		for _, by := range []string{"caller", "limit"} {
			started := filepath.Join(t.TempDir(), by)
			ctx, cancel := context.WithCancel(t.Context())
			r := shell.Request{Script: `sleep 1000 & echo $! >"$1.part"; mv "$1.part" "$1"; wait`, Args: []string{started}, Inside: true, Limit: time.Hour}
			wanted := context.Canceled
			if by == "limit" {
				r.Limit, wanted = time.Second, context.DeadlineExceeded
			}
			done := make(chan error, 1)
			go func() {
				_, err := p.Do(ctx, r)
				done <- err
			}()
			waitFile(t, started)
			if by == "caller" {
				cancel()
			}
			if err := <-done; !errors.Is(err, wanted) {
				t.Errorf("%s: error %v", by, err)
			}
			cancel()
			want(t, do(t, p, shell.Request{Script: `echo next`, Inside: true}), "next\n", "", 0)
			pid := testutil.ReadFile(t, started)
			wantGone(t, strings.TrimSpace(string(pid)))
		}
	})
}
