package local

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

// sharedPatience is for how long a machine that shares a file system may hold up its
// unmounting.
const sharedPatience = 7 * time.Second

// share is what is mounted at a path.
type share struct {
	real   string              // the path with its parents' links resolved
	top    *machine.MountEntry // nil: nothing is
	height int                 // of the stack of mounts at the path
}

// topAt does not look at the target itself: who looks at what another machine shares
// waits for that machine.
func topAt(target string) (s share, err error) {
	entries, err := readMountInfo()
	if err != nil {
		return share{}, err
	}
	target = filepath.Clean(target)
	s.real = filepath.Join(resolve(filepath.Dir(target)), filepath.Base(target))
	for _, e := range entries {
		if e.Point == s.real {
			s.height++
		}
	}
	s.top = machine.TopMount(entries, s.real)
	return s, nil
}

// shareAt is topAt of what another machine shares; what is this machine's own is left out.
func shareAt(target string) (share, error) {
	s, err := topAt(target)
	if s.top != nil && !machine.Shared(s.top.FSType) {
		s.top = nil
	}
	return s, err
}

// mountShared has mount(8) do it: what the kernel is to be told (the address that a name
// has, the version that both speak) a program of the file system's own finds out.
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

// ofType takes away what mount(8) put at a place if that is not of the type that was asked
// for: by some options it forgets the type. done: it says that it mounted something.
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
	// Private first: else what is mounted below goes where it was bound from as well.
	if err := unix.Mount("", now.real, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("unmount %s, which is not of the type %s: %w", m.Target, m.Type, err)
	}
	if err := unix.Unmount(now.real, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount %s, which is not of the type %s: %w", m.Target, m.Type, err)
	}
	return fmt.Errorf("mount on %s: what was mounted is not of the type %s, but of the machine's own %s, and was taken away", m.Target, m.Type, now.top.FSType)
}

// unmountShared is false if what is mounted at target is no other machine's. A server that
// is away cannot hold it up for longer than sharedPatience, twice: where nothing uses the
// mount, the kernel waits for the server when the mount is out of sight already, and not
// longer than the program that asked for it lives. What processes use stays, unless the
// server does not answer: then their requests are aborted, as umount -f does.
func unmountShared(ctx context.Context, target string) (bool, error) {
	at, err := shareAt(target)
	if err != nil || at.top == nil {
		return false, err
	}
	gone := func() bool {
		now, err := topAt(at.real)
		return err == nil && now.height < at.height
	}
	// Paths are not resolved again (-c), as that means to look at what is mounted.
	err = program(ctx, sharedPatience, "umount", "-c", "--", at.real)
	if !gone() && ctx.Err() == nil && !answers(ctx, at.real) {
		err = program(ctx, sharedPatience, "umount", "-cf", "--", at.real)
	}
	if !gone() && ctx.Err() == nil && machine.Detachable(*at.top) {
		err = unix.Unmount(at.real, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH)
	}
	switch {
	case gone():
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	case errors.Is(err, unix.EBUSY), err != nil && strings.Contains(err.Error(), "busy"):
		return false, busy(ctx, target, at.real, at.top)
	}
	return false, fmt.Errorf("unmount %s, which shows %s: %w", target, at.top.Source, err)
}

// answers: the server of a share tells what is left of it. A process of its own asks, as
// the question may last for ever.
func answers(ctx context.Context, real string) bool {
	ctx, cancel := context.WithTimeout(ctx, sharedPatience)
	defer cancel()
	_, err := runCommand(ctx, host.Command{Args: []string{"stat", "-f", "--", real}})
	return err == nil
}

// program runs one to its end; what it says is the error.
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
