package local

import (
	"context"
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
const sharedPatience = 10 * time.Second

// share is what is mounted at a path, if it is another machine's.
type share struct {
	real   string              // the path with its parents' links resolved
	top    *machine.MountEntry // nil: there is none, or this machine's own
	height int                 // of the stack of mounts at the path
}

// shareAt does not look at the target itself: who looks waits for the other machine.
func shareAt(target string) (s share, err error) {
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
	if top := machine.TopMount(entries, s.real); top != nil && machine.Shared(top.FSType) {
		s.top = top
	}
	return s, nil
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
	return program(ctx, mountDeadline, "mount", "-t", m.Type, "-o", machine.ShareOptions(m.Options), "--", m.Source, at.real)
}

// unmountShared is false if what is mounted at target is no other machine's. It goes out of
// sight within sharedPatience, twice at most: the kernel waits for a machine that is away
// when it has been detached already, and not longer than the program that asked for it
// lives.
func unmountShared(ctx context.Context, target string) (bool, error) {
	at, err := shareAt(target)
	if err != nil || at.top == nil {
		return false, err
	}
	// Names are not looked up anew (-c), as that means to look at what is mounted.
	for _, flags := range []string{"-c", "-cfl"} {
		err = program(ctx, sharedPatience, "umount", flags, "--", at.real)
		if now, lookErr := shareAt(at.real); lookErr == nil && now.height < at.height {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	if unix.Unmount(at.real, unix.UMOUNT_NOFOLLOW|unix.MNT_FORCE|unix.MNT_DETACH) == nil {
		return true, nil
	}
	return false, fmt.Errorf("unmount %s, which shows %s: %w", target, at.top.Source, err)
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
