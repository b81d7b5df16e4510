package local

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// watchRetry is the pause before a watch on a missing path is tried again.
const watchRetry = 5 * time.Second

// watched are the events after which the files of a directory may have changed. A file that is
// being written counts when it is closed.
const watched = unix.IN_CLOSE_WRITE | unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

// Watch calls changed when the directory at path may have changed, or, if path is a file, its
// parent directory; until ctx ends. It is a hint: it may come too often and does not come while
// the directory does not exist.
func Watch(ctx context.Context, path string, changed func()) error {
	for ctx.Err() == nil {
		err := watchOnce(ctx, path, changed)
		if ctx.Err() == nil && err == nil {
			changed() // the directory itself was removed or replaced
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(watchRetry):
		}
	}
	return nil
}

func watchOnce(ctx context.Context, path string, changed func()) error {
	dir := path
	if !isDir(path) {
		dir = filepath.Dir(path)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	f := os.NewFile(uintptr(fd), "inotify of "+dir) // in Go's poller, so that Close ends a Read
	defer f.Close()
	if _, err := unix.InotifyAddWatch(fd, dir, watched); err != nil {
		return fmt.Errorf("watch %s: %w", dir, err)
	}
	stop := context.AfterFunc(ctx, func() { _ = f.Close() })
	defer stop()
	changed() // for changes before the watch existed
	buf := make([]byte, 64<<10)
	for {
		n, err := f.Read(buf)
		switch {
		case ctx.Err() != nil, errors.Is(err, os.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("watch %s: %w", dir, err)
		}
		changed()
		if ended(buf[:n]) || dir != path && isDir(path) {
			return nil
		}
	}
}

// ended reports whether the watched directory no longer exists under its name.
func ended(events []byte) bool {
	const gone = unix.IN_IGNORED | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT
	for len(events) >= unix.SizeofInotifyEvent {
		mask, length := binary.NativeEndian.Uint32(events[4:]), binary.NativeEndian.Uint32(events[12:])
		if mask&gone != 0 {
			return true
		}
		events = events[min(len(events), unix.SizeofInotifyEvent+int(length)):]
	}
	return false
}

func isDir(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.IsDir()
}
