package logind_test

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/logind"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/link/linktest"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

var _ logind.Machine = host.Host(nil)

// The stand-ins keep logind's state in files beside them.
const (
	busctl = `#!/bin/sh
d=${0%/*}
echo "$*" >>"$d/log"
case "$*" in
monitor*) echo "Monitoring bus message stream." >&2; exec cat <>"$d/signals" ;;
*PreparingForShutdown) echo "b $(cat "$d/preparing")" ;;
*InhibitDelayMaxUSec) echo "t $(cat "$d/delay")" ;;
*KillUnit*) [ ! -e "$d/raised" ] || cp "$d/raised" "$d/delay" ;;
*) echo "no such call" >&2; exit 1 ;;
esac
`
	inhibit = `#!/bin/sh
d=${0%/*}
echo "$*" >>"$d/log"
if [ "$(cat "$d/preparing")" = true ]; then
	echo "Failed to inhibit: The operation inhibition has been requested for is already running" >&2
	exit 1
fi
while case $1 in --*) true ;; *) false ;; esac; do shift; done
echo yes >"$d/inhibited"
code=0
"$@" || code=$?
rm "$d/inhibited"
exit $code
`
)

// mock is the logind of a host, as remote as its commands show it.
type mock struct {
	t   *testing.T
	dir string
}

func newMock(t *testing.T) *mock {
	dir, err := os.MkdirTemp("", "logind")
	testutil.Must(t, err)
	// A stand-in that is about to end may write once more.
	t.Cleanup(func() {
		testutil.Eventually(t, "all writes have ended", func() bool { return os.RemoveAll(dir) == nil })
	})
	m := &mock{t, dir}
	m.program("busctl", busctl)
	m.program("systemd-inhibit", inhibit)
	m.set("preparing", "false")
	m.set("delay", "5000000")
	if out, err := exec.Command("mkfifo", m.dir+"/signals").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return m
}

func (m *mock) program(name, text string) {
	m.t.Helper()
	testutil.Must(m.t, os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o755))
}

func (m *mock) set(name, value string) {
	m.t.Helper()
	testutil.Must(m.t, os.WriteFile(filepath.Join(m.dir, name+".new"), []byte(value+"\n"), 0o644))
	testutil.Must(m.t, os.Rename(filepath.Join(m.dir, name+".new"), filepath.Join(m.dir, name)))
}

func (m *mock) has(name string) bool {
	_, err := os.Stat(filepath.Join(m.dir, name))
	return err == nil
}

func (m *mock) log() string {
	data, _ := os.ReadFile(filepath.Join(m.dir, "log"))
	return string(data)
}

// signal writes what busctl monitor prints for a signal.
func (m *mock) signal() {
	m.t.Helper()
	f, err := os.OpenFile(m.dir+"/signals", os.O_RDWR, 0)
	testutil.Must(m.t, err)
	defer f.Close()
	if _, err := f.WriteString("‣ Type=signal  Endian=l  Flags=1  Version=1 Cookie=42\n" +
		"  Sender=:1.2  Path=/org/freedesktop/login1  Interface=org.freedesktop.login1.Manager  Member=PrepareForShutdown\n" +
		"  MESSAGE \"b\" {\n          BOOLEAN true;\n  };\n\n"); err != nil {
		m.t.Fatal(err)
	}
}

func remote(t *testing.T, path string) host.Host {
	t.Helper()
	l := linktest.Run(t, sshtest.Run(t), link.Config{})
	h, err := ssh.New(context.Background(), ssh.Config{Name: "remote", Transport: l, Path: path})
	testutil.Must(t, err)
	return h
}

// machines are this host by system calls and over a real sshd, with the stand-ins first in PATH.
func (m *mock) machines() map[string]func() host.Host {
	return map[string]func() host.Host{
		"local": func() host.Host {
			m.t.Setenv("PATH", m.dir+":"+os.Getenv("PATH"))
			h, err := local.New(local.Config{})
			testutil.Must(m.t, err)
			return h
		},
		"remote": func() host.Host {
			return remote(m.t, m.dir+":/usr/sbin:/usr/bin:/sbin:/bin")
		},
	}
}

// both runs a test locally and over SSH.
func both(t *testing.T, f func(t *testing.T, m *mock, h host.Host)) {
	for _, kind := range []string{"local", "remote"} {
		t.Run(kind, func(t *testing.T) {
			m := newMock(t)
			h := m.machines()[kind]()
			defer h.Close()
			f(t, m, h)
		})
	}
}

func open(t *testing.T, h logind.Machine, need time.Duration) *logind.Session {
	t.Helper()
	s, err := logind.Open(context.Background(), logind.Config{Machine: h, Who: "who", Why: "why not", Need: need})
	testutil.Must(t, err)
	t.Cleanup(func() { s.Close() })
	return s
}

func hint(t *testing.T, s *logind.Session) {
	t.Helper()
	select {
	case <-s.Hints():
	case <-s.Ended():
		t.Fatalf("the session ended: %v", s.Err())
	case <-time.After(30 * time.Second):
		t.Fatal("no hint came in 30 s")
	}
}

func TestSession(t *testing.T) {
	both(t, func(t *testing.T, m *mock, h host.Host) {
		ctx := context.Background()
		s := open(t, h, 3*time.Second)
		if s.Delay() != 5*time.Second {
			t.Errorf("logind waits for %s", s.Delay())
		}
		hint(t, s) // the monitor runs
		testutil.Must(t, s.Hold(ctx))
		if !m.has("inhibited") {
			t.Error("it is held and logind does not know")
		}
		if going, err := s.Preparing(ctx); err != nil || going {
			t.Errorf("preparing: %v, %v", going, err)
		}
		m.set("preparing", "true")
		m.signal()
		hint(t, s)
		if going, err := s.Preparing(ctx); err != nil || !going {
			t.Errorf("preparing: %v, %v", going, err)
		}
		testutil.Must(t, s.Release(ctx))
		if m.has("inhibited") {
			t.Error("it is released and logind does not know")
		}
		if err := s.Hold(ctx); err == nil || !strings.Contains(err.Error(), "already running") {
			t.Errorf("held while the machine goes down: %v", err)
		}
		m.set("preparing", "false")
		m.signal()
		hint(t, s)
		testutil.Must(t, s.Hold(ctx))
		testutil.Must(t, s.Close())
		testutil.Eventually(t, "the inhibitor goes with the session", func() bool { return !m.has("inhibited") })
		if log := m.log(); !strings.Contains(log, "--what=shutdown --mode=delay --who=who --why=why not sh") || !strings.Contains(log, "sender='org.freedesktop.login1'") {
			t.Errorf("the commands were\n%s", log)
		}
	})
}

// TestNothingStays: the processes on the host end with the session.
func TestNothingStays(t *testing.T) {
	both(t, func(t *testing.T, m *mock, h host.Host) {
		s := open(t, h, 0)
		testutil.Must(t, s.Hold(context.Background()))
		fifo := m.dir + "/signals"
		readers := func() bool {
			open, _ := filepath.Glob("/proc/[0-9]*/fd/*")
			return slices.ContainsFunc(open, func(f string) bool {
				to, _ := os.Readlink(f)
				return to == fifo
			})
		}
		testutil.Eventually(t, "the monitor reads the signals", readers)
		testutil.Must(t, s.Close())
		testutil.Eventually(t, "the monitor ends", func() bool { return !readers() })
		testutil.Eventually(t, "the session ends", func() bool {
			select {
			case <-s.Ended():
				return true
			default:
				return false
			}
		})
	})
}

// TestShortSessions: a session that is closed right after it was opened leaves no process
// either, however far its script has got.
func TestShortSessions(t *testing.T) {
	both(t, func(t *testing.T, m *mock, h host.Host) {
		for range 60 {
			s, err := logind.Open(context.Background(), logind.Config{Machine: h, Who: "who", Why: "why"})
			testutil.Must(t, err)
			testutil.Must(t, s.Close())
		}
		testutil.Eventually(t, "every process of theirs has ended", func() bool {
			all, _ := filepath.Glob("/proc/[0-9]*/environ")
			return !slices.ContainsFunc(all, func(f string) bool {
				env, _ := os.ReadFile(f) // empty if the process has just ended
				if !strings.Contains(string(env), "="+m.dir+":") {
					return false
				}
				args, _ := os.ReadFile(strings.TrimSuffix(f, "environ") + "cmdline")
				return strings.Contains(string(args), "monitor") || strings.HasPrefix(string(args), "cat")
			})
		})
	})
}

// TestInhibitorIsLost: anyone on the host may end the process that holds the inhibitor, and then
// the inhibitor is released.
func TestInhibitorIsLost(t *testing.T) {
	both(t, func(t *testing.T, m *mock, h host.Host) {
		m.program("systemd-inhibit", strings.Replace(inhibit, `echo yes >"$d/inhibited"`, `echo yes >"$d/inhibited"; echo $$ >"$d/holder"`, 1))
		s := open(t, h, 0)
		testutil.Must(t, s.Hold(context.Background()))
		pid := testutil.ReadFile(t, m.dir+"/holder")
		// The stand-in ends with the process that it runs; a signal to the stand-in alone would
		// not end that.
		if out, err := exec.Command("pkill", "-KILL", "-P", strings.TrimSpace(string(pid))).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		testutil.Receive(t, s.Ended(), 30*time.Second, "it is not noticed")
		if err := s.Err(); err == nil || !strings.Contains(err.Error(), "is lost") {
			t.Errorf("the session ended with %v", err)
		}
	})
}

// TestMonitorThatNeverStops: a monitor that prints without end exceeds a budget, like any other
// program.
func TestMonitorThatNeverStops(t *testing.T) {
	both(t, func(t *testing.T, m *mock, h host.Host) {
		m.program("busctl", strings.Replace(busctl, `exec cat <>"$d/signals"`, `while :; do echo PrepareForShutdown; done`, 1))
		account := budget.New(budget.Limits{OutputBytes: 64 << 10})
		s, err := logind.Open(budget.With(context.Background(), account), logind.Config{Machine: h, Who: "who", Why: "why not", Need: time.Second})
		testutil.Must(t, err)
		defer s.Close()
		testutil.Receive(t, s.Ended(), 30*time.Second, "it is listened to for ever")
		var much *budget.ExceededError
		if !errors.As(s.Err(), &much) || much.Kind != budget.OutputBytes || account.Err() == nil {
			t.Errorf("the session ended with %v, the account with %v", s.Err(), account.Err())
		}
	})
}

// TestMonitorEnds: a restart of the bus ends the monitor, and with it the session.
func TestMonitorEnds(t *testing.T) {
	both(t, func(t *testing.T, m *mock, h host.Host) {
		m.program("busctl", strings.Replace(busctl, `exec cat <>"$d/signals"`, `echo "Failed to read from the bus" >&2; exit 1`, 1))
		s := open(t, h, 0)
		testutil.Receive(t, s.Ended(), 30*time.Second, "it is not noticed")
		if err := s.Err(); err == nil || !strings.Contains(err.Error(), "Failed to read from the bus") {
			t.Errorf("the session ended with %v", err)
		}
		if err := s.Hold(context.Background()); err == nil {
			t.Error("a session that has ended holds")
		}
	})
}

func TestNone(t *testing.T) {
	both(t, func(t *testing.T, m *mock, h host.Host) {
		m.program("busctl", "#!/bin/sh\necho 'Failed to connect to bus: No such file or directory' >&2\nexit 1\n")
		_, err := logind.Open(context.Background(), logind.Config{Machine: h, Who: "who", Why: "why"})
		if !errors.Is(err, logind.ErrNone) || !strings.Contains(err.Error(), "Failed to connect") {
			t.Errorf("opened: %v", err)
		}
	})
	t.Run("without the program", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		h, err := local.New(local.Config{})
		testutil.Must(t, err)
		if _, err := logind.Open(context.Background(), logind.Config{Machine: h}); !errors.Is(err, logind.ErrNone) {
			t.Errorf("opened: %v", err)
		}
	})
}

// elsewhere is a machine with its drop-in at another path.
type elsewhere struct {
	logind.Machine
	dir string
}

func (e elsewhere) Make(ctx context.Context, entries ...host.Entry) ([]bool, error) {
	for i := range entries {
		entries[i].Path = e.dir + entries[i].Path
	}
	return e.Machine.Make(ctx, entries...)
}

func (e elsewhere) Remove(ctx context.Context, path string) error {
	return e.Machine.Remove(ctx, e.dir+path)
}

// TestDelay: logind is made to wait longer only if it would not wait long enough, and Restore
// undoes that.
func TestDelay(t *testing.T) {
	both(t, func(t *testing.T, m *mock, h host.Host) {
		ctx := context.Background()
		e := elsewhere{h, t.TempDir()}
		open := func(need time.Duration) *logind.Session {
			t.Helper()
			s, err := logind.Open(ctx, logind.Config{Machine: e, Who: "who", Why: "why", Need: need, Margin: 7 * time.Second})
			testutil.Must(t, err)
			testutil.Must(t, s.Close())
			return s
		}
		if s := open(5 * time.Second); s.Delay() != 5*time.Second || strings.Contains(m.log(), "KillUnit") {
			t.Errorf("it waits for %s; the commands were\n%s", s.Delay(), m.log())
		}
		if _, err := os.Stat(e.dir + logind.DropIn); err == nil {
			t.Error("a drop-in was written that was not needed")
		}
		testutil.Must(t, logind.Restore(ctx, e))
		if strings.Contains(m.log(), "KillUnit") {
			t.Error("nothing was restored, and logind was bothered")
		}

		m.set("raised", "37000000")
		if s := open(30 * time.Second); s.Delay() != 37*time.Second {
			t.Errorf("it waits for %s", s.Delay())
		}
		data := testutil.ReadFile(t, e.dir+logind.DropIn)
		if !strings.HasSuffix(string(data), "\n[Login]\nInhibitDelayMaxSec=37\n") {
			t.Errorf("the drop-in is\n%s", data)
		}
		m.set("raised", "5000000")
		testutil.Must(t, logind.Restore(ctx, e))
		if _, err := os.Stat(e.dir + logind.DropIn); err == nil || strings.Count(m.log(), "KillUnit ssi systemd-logind.service all 1") != 2 {
			t.Errorf("the drop-in: %v; the commands were\n%s", err, m.log())
		}

		// A drop-in of the host's owner that sorts later decides how long logind waits.
		if s := open(time.Minute); s.Delay() != 5*time.Second {
			t.Errorf("it waits for %s", s.Delay())
		}
	})
}
