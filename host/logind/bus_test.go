package logind_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// bus is a private D-Bus on which python3-dbusmock plays logind, so the protocol, busctl and
// systemd-inhibit are the real ones. The test is skipped without python3-dbusmock.
type bus struct {
	t       *testing.T
	address string
}

func newBus(t *testing.T) *bus {
	t.Helper()
	for _, p := range []string{"dbus-daemon", "busctl", "systemd-inhibit"} {
		if _, err := exec.LookPath(p); err != nil {
			t.Skip(err)
		}
	}
	const python = "/usr/bin/python3" // the interpreter that Debian packages its modules for
	if out, err := exec.Command(python, "-c", "import dbusmock").CombinedOutput(); err != nil {
		t.Skipf("python3-dbusmock is not here: %s", out)
	}
	b := &bus{t, "unix:path=" + t.TempDir() + "/bus"}
	b.daemon("dbus-daemon", "--session", "--nofork", "--address="+b.address)
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", b.address)
	testutil.Eventually(t, "the bus answers", func() bool { return exec.Command("busctl", "--system", "list").Run() == nil })
	b.daemon(python, "-m", "dbusmock", "--system", "--template", "logind")
	testutil.Eventually(t, "the mock answers", func() bool {
		return exec.Command("busctl", "--system", "get-property", "org.freedesktop.login1", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PreparingForShutdown").Run() == nil
	})
	b.mock("org.freedesktop.DBus.Mock", "AddProperty", "ssv", "org.freedesktop.login1.Manager", "InhibitDelayMaxUSec", "t", "5000000")
	return b
}

func (b *bus) daemon(name string, args ...string) {
	b.t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "DBUS_SYSTEM_BUS_ADDRESS="+b.address)
	testutil.Must(b.t, cmd.Start())
	b.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
}

func (b *bus) ctl(args ...string) string {
	b.t.Helper()
	out, err := exec.Command("busctl", append([]string{"--system"}, args...)...).CombinedOutput()
	if err != nil {
		b.t.Fatalf("busctl %v: %v: %s", args, err, out)
	}
	return string(out)
}

func (b *bus) mock(args ...string) string {
	b.t.Helper()
	return b.ctl(append([]string{"call", "org.freedesktop.login1", "/org/freedesktop/login1"}, args...)...)
}

func (b *bus) property(name, kind, value string) {
	b.t.Helper()
	b.mock("org.freedesktop.DBus.Mock", "UpdateProperties", "sa{sv}", "org.freedesktop.login1.Manager", "1", name, kind, value)
}

func (b *bus) prepare(going string) {
	b.t.Helper()
	b.property("PreparingForShutdown", "b", going)
	b.mock("org.freedesktop.DBus.Mock", "EmitSignal", "sssav", "org.freedesktop.login1.Manager", "PrepareForShutdown", "b", "1", "b", going)
}

func (b *bus) inhibitors() string {
	b.t.Helper()
	return b.mock("org.freedesktop.login1.Manager", "ListInhibitors")
}

// TestOnABus runs busctl and systemd-inhibit on a real bus.
func TestOnABus(t *testing.T) {
	for _, kind := range []string{"local", "remote"} {
		t.Run(kind, func(t *testing.T) {
			b := newBus(t)
			var h host.Host
			if kind == "local" {
				var err error
				h, err = local.New(local.Config{})
				testutil.Must(t, err)
			} else {
				// The login has its own environment.
				dir := t.TempDir()
				for _, p := range []string{"busctl", "systemd-inhibit"} {
					real, err := exec.LookPath(p)
					testutil.Must(t, err)
					testutil.Must(t, os.WriteFile(filepath.Join(dir, p), []byte("#!/bin/sh\nDBUS_SYSTEM_BUS_ADDRESS="+b.address+" exec "+real+" \"$@\"\n"), 0o755))
				}
				h = remote(t, dir+":/usr/bin:/bin")
			}
			defer h.Close()
			ctx := context.Background()
			s := open(t, h, 5*time.Second)
			hint(t, s)
			testutil.Must(t, s.Hold(ctx))
			if list := b.inhibitors(); !strings.Contains(list, `"shutdown" "who" "why not" "delay"`) {
				t.Errorf("logind knows of %s", list)
			}
			for _, going := range []string{"true", "false"} {
				b.prepare(going)
				hint(t, s)
				if got, err := s.Preparing(ctx); err != nil || got != (going == "true") {
					t.Errorf("preparing: %v, %v; it is %s", got, err, going)
				}
			}
			testutil.Must(t, s.Release(ctx))
			testutil.Eventually(t, "logind knows of no inhibitor", func() bool { return !strings.Contains(b.inhibitors(), "who") })
			testutil.Must(t, s.Hold(ctx))

			// A signal of another sender does not count.
			b.ctl("emit", "/org/freedesktop/login1", "org.freedesktop.login1.Manager", "PrepareForShutdown", "b", "true")
			if got, err := s.Preparing(ctx); err != nil || got {
				t.Errorf("preparing: %v, %v", got, err)
			}
			select {
			case <-s.Hints():
				t.Error("another's signal was heard as logind's")
			default:
			}
			testutil.Must(t, s.Close())
			testutil.Eventually(t, "the inhibitor goes with the session", func() bool { return !strings.Contains(b.inhibitors(), "who") })
		})
	}
}
