package local

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/moby/sys/mountinfo"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// sharedPatience is how long a file server may delay an unmount.
const sharedPatience = 7 * time.Second

// share is the mount at a path.
type share struct {
	real   string          // the path with the links in its parents resolved
	top    *mountinfo.Info // nil: nothing is mounted
	height int             // of the stack of mounts at the path
	inside string          // the path of a mount below it; empty: none
}

// topAt does not access the target itself, because access to a network file system blocks while
// the server does not answer.
func topAt(target string) (s share, err error) {
	entries, err := readMountInfo()
	if err != nil {
		return share{}, err
	}
	target = filepath.Clean(target)
	s.real = filepath.Join(resolve(filepath.Dir(target)), filepath.Base(target))
	for _, e := range entries {
		switch {
		case e.Mountpoint == s.real:
			s.height++
		case machine.Below(s.real, e.Mountpoint):
			s.inside = e.Mountpoint
		}
	}
	s.top = machine.TopMount(entries, s.real)
	return s, nil
}

// hasInside is the error for a mount that has another one below it.
func (s share) hasInside(target string) error {
	return fmt.Errorf("unmount %s: %s: %w", target, s.inside, host.ErrMountInside)
}

// sharedAt reports whether a network file system is among the mounts that are stacked at target.
func sharedAt(target string) (bool, error) {
	entries, err := readMountsOf(machine.SharedType)
	if err != nil {
		return false, err
	}
	at := func(real string) bool {
		return slices.ContainsFunc(entries, func(e *mountinfo.Info) bool {
			return machine.Shared(e.FSType) && e.Mountpoint == real
		})
	}
	target = filepath.Clean(target)
	return at(filepath.Join(resolve(filepath.Dir(target)), filepath.Base(target))), nil
}

// shareAt is topAt for network file systems; it omits all other mounts.
func shareAt(target string) (share, error) {
	s, err := topAt(target)
	if s.top != nil && !machine.Shared(s.top.FSType) {
		s.top = nil
	}
	return s, err
}

// mountShared runs mount(8), because the kernel needs data that a helper program of the file
// system finds out: the address of a name, and the version that both sides support.
func mountShared(ctx context.Context, m host.Mount) error {
	at, err := shareAt(m.Target)
	if err != nil {
		return err
	}
	if at.top != nil && machine.SameType(at.top.FSType, m.Type) && at.top.Source == m.Source {
		return nil
	}
	if err := mkdirParents(at.real, 0o750); err != nil {
		return err
	}
	err = program(ctx, mountDeadline, "mount", "-t", m.Type, "-o", machine.ShareOptions(m.Options), "--", m.Source, at.real)
	return errors.Join(err, ofType(m, at, err == nil))
}

// ofType checks the type of what mount(8) mounted, and unmounts it if it is another one: with
// some options mount(8) ignores the type. done: mount(8) reported success.
func ofType(m host.Mount, before share, done bool) error {
	now, err := topAt(before.real)
	switch {
	case err != nil:
		return err
	case now.top != nil && machine.SameType(now.top.FSType, m.Type):
		return nil
	case now.top == nil || now.height <= before.height:
		if done {
			return fmt.Errorf("mount on %s: nothing of the type %s is mounted", m.Target, m.Type)
		}
		return nil
	}
	// Private first: otherwise the unmount of a mount below propagates to the source of the bind
	// mount.
	if err := unix.Mount("", now.real, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("unmount %s, which is not of the type %s: %w", m.Target, m.Type, err)
	}
	if err := unix.Unmount(now.real, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s, which is not of the type %s: %w", m.Target, m.Type, err)
	}
	return fmt.Errorf("mount on %s: mounted %s instead of %s; unmounted it", m.Target, now.top.FSType, m.Type)
}

// unmountShared returns false if target is not a network file system. A dead server delays it by
// sharedPatience at most twice: if no process uses the mount, the kernel first detaches it and
// then waits for the server, only as long as the umount program lives. A mount that processes
// use stays, unless the server does not answer: then umount -f aborts their requests.
func unmountShared(ctx context.Context, target string) (bool, error) {
	at, err := shareAt(target)
	if err != nil || at.top == nil {
		return false, err
	}
	gone := func() bool {
		now, err := topAt(at.real)
		return err == nil && now.height < at.height
	}
	// -c: do not resolve the path again, because that accesses the mount.
	err = program(ctx, sharedPatience, "umount", "-c", "--", at.real)
	if !gone() && ctx.Err() == nil && !answers(ctx, at.real) {
		err = program(ctx, sharedPatience, "umount", "-cf", "--", at.real)
	}
	if !gone() && at.inside != "" {
		return false, at.hasInside(target)
	}
	if !gone() && ctx.Err() == nil && machine.Detachable(at.top) {
		err = unix.Unmount(at.real, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	switch {
	case gone():
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	// umount(8) has the same exit status for each failure; its words are "target is busy", "device is
	// busy" or "Device or resource busy".
	case errors.Is(err, unix.EBUSY), err != nil && strings.Contains(err.Error(), " busy"):
		return false, busy(ctx, target, at.real, at.top)
	}
	return false, fmt.Errorf("unmount %s, which shows %s: %w", target, at.top.Source, err)
}

// answers reports whether the server of a share answers statfs. A separate process asks, because
// the call may block for ever.
func answers(ctx context.Context, real string) bool {
	ctx, cancel := context.WithTimeout(ctx, sharedPatience)
	defer cancel()
	_, err := runCommand(ctx, host.Command{Args: []string{"stat", "-f", "--", real}})
	return err == nil
}

// program runs a program until it ends; on a failure the error has its output.
func program(ctx context.Context, limit time.Duration, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	res, err := runCommand(ctx, host.Command{Args: args})
	if err != nil {
		return err
	}
	if res.ExitCode != 0 {
		said := strings.Join(strings.Fields(string(res.Stderr)+" "+string(res.Stdout)), " ")
		return fmt.Errorf("%s %s: exit status %d: %s", args[0], args[len(args)-1], res.ExitCode, said)
	}
	return nil
}
