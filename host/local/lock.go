package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

const maxHolder = 64 << 10

// Lock is flock(2): the kernel ties it to the open file, not to the PID, and releases it however
// the process ends.
func (h *Host) Lock(ctx context.Context, path string, holder []byte) (host.Lock, error) {
	return call(h, ctx, "Lock", shortDeadline, func(ctx context.Context) (host.Lock, error) {
		if err := machine.Absolute("lock", path); err != nil {
			return nil, err
		}
		for {
			if err := ctx.Err(); err != nil {
				return nil, fmt.Errorf("lock %s: %w", path, err)
			}
			if err := mkdirParents(filepath.Dir(path), 0o750); err != nil {
				return nil, err
			}
			f, err := os.OpenFile(path, unix.O_RDWR|unix.O_CREAT|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0o640)
			if errors.Is(err, fs.ErrNotExist) {
				continue // the directory was removed in the meantime
			}
			if err != nil {
				return nil, err
			}
			l, again, err := h.take(ctx, f, path, holder)
			if err == nil && !again {
				return l, nil
			}
			f.Close()
			if err != nil {
				return nil, err
			}
		}
	})
}

// take locks the open file. again reports that path now names another file (the last holder
// removed the old one), so that the lock would exclude no other process.
func (h *Host) take(ctx context.Context, f *os.File, path string, holder []byte) (l host.Lock, again bool, err error) {
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return nil, false, &host.LockedError{Path: path, Holder: readHolder(ctx, f)}
	}
	if err != nil {
		return nil, false, &fs.PathError{Op: "lock", Path: path, Err: err}
	}
	if !samePath(f, path) {
		return nil, true, nil
	}
	err = f.Truncate(0)
	if err == nil {
		_, err = f.WriteAt(holder, 0)
	}
	if err != nil {
		return nil, false, fmt.Errorf("lock %s: write the holder: %w", path, err)
	}
	lk := &lock{f: f, path: path, lost: make(chan struct{}), stop: make(chan struct{})}
	lk.done.Add(1)
	go lk.watch(h.lockCheck)
	return lk, false, nil
}

// readHolder gives a holder that has just taken the lock some time to write its identity.
func readHolder(ctx context.Context, f *os.File) []byte {
	for retry := (wait.Backoff{Duration: time.Millisecond, Factor: 2, Steps: 7}); ; {
		data, err := io.ReadAll(io.NewSectionReader(f, 0, maxHolder))
		if err != nil || len(data) > 0 || retry.Steps == 0 || pause(ctx, retry.Step()) != nil {
			return data
		}
	}
}

func samePath(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	named, err := os.Lstat(path)
	return err == nil && os.SameFile(open, named)
}

// lock is a held lock. It is lost when its path names another file, or none: then another
// process can lock the same path.
type lock struct {
	f    *os.File
	path string
	lost chan struct{}
	stop chan struct{}
	done sync.WaitGroup
	once sync.Once
	err  error
}

func (l *lock) watch(every time.Duration) {
	defer l.done.Done()
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-l.stop:
			return
		case <-t.C:
			if !samePath(l.f, l.path) {
				close(l.lost)
				return
			}
		}
	}
}

func (l *lock) Lost() <-chan struct{} { return l.lost }

// Close empties the file, so that no reader takes a past holder for a current one.
func (l *lock) Close() error {
	l.once.Do(func() {
		close(l.stop)
		l.done.Wait()
		l.err = errors.Join(l.f.Truncate(0), l.f.Close())
	})
	return l.err
}
