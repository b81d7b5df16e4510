package logind

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/bowline-k8s/bowline/host"
)

// Machine is the part of host.Host that this package needs.
type Machine interface {
	Run(ctx context.Context, cmd host.Command) (host.Result, error)
	Start(ctx context.Context, args ...string) (host.Process, error)
	Make(ctx context.Context, entries ...host.Entry) (made []bool, err error)
	Remove(ctx context.Context, path string) error
}

// ErrNone: the host has no logind that answers.
var ErrNone = errors.New("no systemd-logind")

// DropIn is the configuration file that makes logind wait longer. The number sorts it behind the
// files of the distribution and of the owner of the host.
const DropIn = "/run/systemd/logind.conf.d/99-bowline.conf"

const (
	service   = "org.freedesktop.login1"
	object    = "/org/freedesktop/login1"
	manager   = "org.freedesktop.login1.Manager"
	askedFor  = 30 * time.Second // for one question to logind, on a busy host
	reloadFor = 5                // checks, each after twice the pause before it
	firstLook = 100 * time.Millisecond
)

// property asks logind for a property, which busctl prints as "t 5000000".
func property(ctx context.Context, m Machine, name, kind string) (string, error) {
	r, err := m.Run(ctx, host.Command{Args: []string{"busctl", "--system", "get-property", service, object, manager, name}, Timeout: askedFor})
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		return "", fmt.Errorf("%w: there is no busctl on the host", ErrNone)
	case err != nil:
		return "", fmt.Errorf("ask logind for %s: %w", name, err)
	case r.ExitCode != 0:
		return "", fmt.Errorf("%w: busctl: %s", ErrNone, strings.TrimSpace(string(r.Stderr)))
	}
	value, ok := strings.CutPrefix(strings.TrimSpace(string(r.Stdout)), kind+" ")
	if !ok {
		return "", fmt.Errorf("read %s from logind: got %q", name, r.Stdout)
	}
	return value, nil
}

func preparing(ctx context.Context, m Machine) (bool, error) {
	value, err := property(ctx, m, "PreparingForShutdown", "b")
	return value == "true", err
}

// delay returns the longest time that logind waits for inhibitors of a shutdown.
func delay(ctx context.Context, m Machine) (time.Duration, error) {
	value, err := property(ctx, m, "InhibitDelayMaxUSec", "t")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read InhibitDelayMaxUSec from logind: %w", err)
	}
	return time.Duration(min(n, uint64(1<<63-1)/1000)) * time.Microsecond, nil
}

// raise makes logind wait for at least need: if it waits less, raise configures need+margin. It
// returns the delay that is in force afterwards.
func raise(ctx context.Context, m Machine, need, margin time.Duration) (time.Duration, error) {
	most, err := delay(ctx, m)
	if err != nil || most >= need {
		return most, err
	}
	text := fmt.Sprintf("# Written by bowline for the graceful node shutdown; removed at the next boot.\n[Login]\nInhibitDelayMaxSec=%d\n",
		int64((need+margin+time.Second-1)/time.Second))
	if _, err := m.Make(ctx, host.Entry{Path: DropIn[:strings.LastIndexByte(DropIn, '/')], Mode: fs.ModeDir | 0o755},
		host.Entry{Path: DropIn, Mode: 0o644, Data: []byte(text)}); err != nil {
		return most, fmt.Errorf("raise logind's InhibitDelayMaxSec: %w", err)
	}
	if err := reload(ctx, m); err != nil {
		return most, err
	}
	look := wait.Backoff{Duration: firstLook, Factor: 2, Steps: reloadFor}
	for look.Steps > 0 { // logind answers the signal before it has read its configuration
		select {
		case <-ctx.Done():
			return most, ctx.Err()
		case <-time.After(look.Step()):
		}
		if most, err = delay(ctx, m); err != nil || most >= need {
			return most, err
		}
	}
	return most, nil
}

func reload(ctx context.Context, m Machine) error {
	r, err := m.Run(ctx, host.Command{Timeout: askedFor, Args: []string{"busctl", "--system", "call", "org.freedesktop.systemd1", "/org/freedesktop/systemd1",
		"org.freedesktop.systemd1.Manager", "KillUnit", "ssi", "systemd-logind.service", "all", "1"}})
	if err == nil && r.ExitCode != 0 {
		err = errors.New(strings.TrimSpace(string(r.Stderr)))
	}
	if err != nil {
		return fmt.Errorf("reload the configuration of logind: %w", err)
	}
	return nil
}

// Restore removes the drop-in of Open, if there is one.
func Restore(ctx context.Context, m Machine) error {
	switch err := m.Remove(ctx, DropIn); {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("restore logind's InhibitDelayMaxSec: %w", err)
	}
	return reload(ctx, m)
}
