package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host"
)

const (
	// lateWrites is how long the runtime may still write to the old log after the new one exists,
	// because it opens the new one first.
	lateWrites = time.Second
	// headSize is how many bytes at the beginning of a file identify it: the time of its first
	// line, to the nanosecond, and some text.
	headSize = 96
	// listTries is how often to list a directory again that changes meanwhile.
	listTries = 5
	// pauseOf is the pause between reads in which two rotations may have happened. The second one
	// compresses the file that was open, and a new file may get its inode.
	pauseOf = 2 * time.Second

	compressed = ".gz"
	temporary  = ".tmp"
)

// place is the position of the open file in the order in which the runtime wrote: first the rotated
// files LOG.STAMP, whose names sort by time and some of which are compressed, then the file at the
// log's path.
type place struct {
	following bool
	// unplaced: the directory could not be listed yet.
	unplaced bool
	// after is the name, without .gz, of the open file if that is rotated. If current, it is the
	// last rotated file before the open one; empty if there is none.
	after string
	// current: the open file was at the log's path when that was last checked.
	current bool
	head    []byte // the first bytes of the open file, up to headSize
	// read is when the open file was last known to be the one that was opened. reopened means: just
	// before the last read.
	read     time.Time
	reopened bool
}

// rotated is one rotated file.
type rotated struct {
	stem  string // name without .gz
	info  host.FileInfo
	whole bool // not compressed
}

// list returns the rotated files in order of time, and the file at the log's path, or the zero
// FileInfo if there is none.
func (r *reader) list(ctx context.Context) (old []rotated, now host.FileInfo, err error) {
	dir, base := path.Split(r.path)
	infos, err := r.h.List(ctx, path.Clean(dir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // the directory is removed with the pod
		return nil, now, err
	}
	at := map[string]int{}
	for _, info := range infos {
		if info.Name == base {
			now = info
		}
		if !strings.HasPrefix(info.Name, base+".") || strings.HasSuffix(info.Name, temporary) || !info.Mode.IsRegular() {
			continue
		}
		stem, packed := strings.CutSuffix(info.Name, compressed)
		f := rotated{stem, info, !packed}
		// Both exist for a moment; the uncompressed one is complete.
		if i, both := at[stem]; !both {
			at[stem] = len(old)
			old = append(old, f)
		} else if !packed {
			old[i] = f
		}
	}
	slices.SortFunc(old, func(a, b rotated) int { return strings.Compare(a.stem, b.stem) })
	return old, now, nil
}

// locate determines the place of the file that was just opened at the log's path.
func (r *reader) locate(ctx context.Context) error {
	if !r.following {
		r.place = place{following: true, current: true, read: time.Now()}
		var err error
		if r.head, err = headOf(r.f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	old, _, err := r.list(ctx)
	if r.unplaced = errors.Is(err, host.ErrUnreachable); err != nil {
		if r.unplaced {
			return nil
		}
		return err
	}
	for _, f := range old {
		if f.whole && sameFile(f.info, r.info) {
			break // rotated since we opened it
		}
		r.after = f.stem
	}
	return nil
}

func headOf(f host.File) ([]byte, error) {
	b := make([]byte, headSize)
	n, err := f.ReadAt(b, 0)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b[:n], err
}

// see records the beginning of the file, which may have been empty when it was opened.
func (r *reader) see(b []byte) {
	if int64(len(r.head)) == r.pos && len(r.head) < headSize {
		r.head = append(r.head, b[:min(len(b), headSize-len(r.head))]...)
	}
}

// sure checks that the open file is still the one that was opened. On some hosts a read looks up
// its file by inode: it may find none or, after a while, another file. other reports whether sure
// has replaced r.f by a file that continues where the lost one ended. gone means that a read found
// no file.
func (r *reader) sure(ctx context.Context, gone bool) (other bool, err error) {
	recent := r.reopened || time.Since(r.read) < pauseOf
	skip := r.current && recent || len(r.head) == 0
	r.read, r.reopened = time.Now(), false
	switch r.f.(type) {
	case nothing:
		return false, nil
	case *unpacked:
		skip = true
	}
	switch {
	case r.current && len(r.head) == 0 && !r.unplaced && (gone || !recent):
		return true, r.reopen(ctx)
	case gone:
		return r.lost(ctx, false)
	}
	if skip {
		return false, nil
	}
	b := make([]byte, len(r.head))
	n, err := r.f.ReadAt(b, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil && !errors.Is(err, io.EOF):
		return false, err
	case bytes.Equal(b[:n], r.head):
		return false, nil
	}
	// An empty file may be ours, truncated in place; rotate sees that by its size.
	return r.lost(ctx, errors.Is(err, io.EOF) && n == 0)
}

func sameFile(a, b host.FileInfo) bool { return a.Inode == b.Inode && a.Device == b.Device }

// rotate switches to the file at the path if that is not the open one, after reading all files in
// between. Until the runtime has opened a new file, it writes to the old one, which may have
// another name by then. So rotate reads each file to its end after it has found a later one, and
// changes nothing while no file is at the path.
func (r *reader) rotate(ctx context.Context) error {
	var now host.FileInfo
	for other := true; other; { // again if sure opened a file after the call of Stat
		var err error
		if now, err = r.h.Stat(ctx, r.path); errors.Is(err, fs.ErrNotExist) || errors.Is(err, host.ErrUnreachable) {
			return nil
		}
		if err == nil && r.unplaced {
			err = r.locate(ctx)
		}
		if err == nil {
			other, err = r.sure(ctx, false)
		}
		if err != nil {
			return fmt.Errorf("follow the log %s: %w", r.path, err)
		}
	}
	if r.current && sameFile(now, r.info) {
		if now.Size < r.pos { // truncated in place
			r.pos, r.rest, r.skip, r.head = 0, r.rest[:0], false, nil
		}
		return nil
	}
	if err := wait(ctx, lateWrites); err != nil {
		return err
	}
	for moved := r.current; ; moved = false {
		asked := time.Now()
		next, err := r.next(ctx, moved)
		if err != nil {
			if errors.Is(err, host.ErrUnreachable) {
				return nil
			}
			return fmt.Errorf("follow the log %s: %w", r.path, err)
		}
		if next == nil {
			return nil
		}
		if next.current && !sameFile(next.info, now) {
			err = wait(ctx, lateWrites) // it did not exist before the wait above
		}
		if err == nil {
			err = r.drain(ctx)
		}
		if err == nil {
			err = r.unfinished()
		}
		if err != nil {
			_ = next.f.Close()
			return err
		}
		r.turnTo(next, asked)
		if _, err := r.sure(ctx, false); err != nil { // drain may have taken long
			return fmt.Errorf("follow the log %s: %w", r.path, err)
		}
	}
}

// turnTo makes next the open file, which was opened at the time read.
func (r *reader) turnTo(next *opened, read time.Time) {
	_ = r.f.Close() // it was only read
	r.f, r.info, r.after, r.current = next.f, next.info, next.after, next.current
	r.pos, r.rest, r.skip, r.head, r.read = 0, r.rest[:0], false, next.head, read
}

// opened is the file that follows the open one.
type opened struct {
	f       host.File
	info    host.FileInfo
	after   string
	current bool
	head    []byte
}

// next opens the file that the runtime wrote after the open file; nil if there is none yet. moved
// means that the open file is known to have left the log's path: the file there is another one,
// even if it has the inode of the open file by now.
func (r *reader) next(ctx context.Context, moved bool) (*opened, error) {
	for range listTries {
		old, now, err := r.list(ctx)
		if err != nil {
			return nil, err
		}
		if r.current {
			if !moved && sameFile(now, r.info) {
				return nil, nil
			}
			if err := r.find(ctx, old); err != nil {
				return nil, err
			}
		}
		o := &opened{after: r.after, current: true}
		name, want, whole := path.Base(r.path), now, true
		if i := slices.IndexFunc(old, func(f rotated) bool { return f.stem > r.after }); i >= 0 {
			name, want, whole = old[i].info.Name, old[i].info, old[i].whole
			o.after, o.current = old[i].stem, false
		} else if want == (host.FileInfo{}) {
			return nil, nil
		}
		o.f, o.info, err = r.openAs(ctx, name, want, whole)
		if err == nil && whole {
			if o.head, err = headOf(o.f); err != nil {
				_ = o.f.Close()
			}
		}
		if err == nil {
			return o, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		// It was renamed, compressed or removed after the listing: list again.
	}
	return nil, nil // retry at the next poll
}

// openAs opens a file of the log's directory and verifies that it is the listed file want.
func (r *reader) openAs(ctx context.Context, name string, want host.FileInfo, whole bool) (host.File, host.FileInfo, error) {
	f, err := r.h.Open(ctx, path.Join(path.Dir(r.path), name))
	if err != nil {
		return nil, want, err
	}
	info, err := f.Stat()
	if err == nil && !sameFile(info, want) {
		err = fmt.Errorf("%s was replaced: %w", name, fs.ErrNotExist)
	}
	if err == nil && !whole {
		var z *unpacked
		if z, err = unpack(f, info.Size); err == nil {
			return z, info, nil
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, want, err
	}
	return f, info, nil
}
