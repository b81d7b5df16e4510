package logs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"slices"
	"time"

	"github.com/bowline-k8s/bowline/host"
)

// find determines the place of the open file when it is no longer at the log's path. If the file is
// nowhere, it was removed: then its place stays before all later files.
func (r *reader) find(ctx context.Context, old []rotated) error {
	if len(r.head) == 0 { // it was empty when it was opened
		var err error
		if r.head, err = headOf(r.f); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, f := range old {
		if f.stem <= r.after {
			continue
		}
		same := f.whole && sameFile(f.info, r.info)
		if !f.whole && len(r.head) > 0 {
			var err error
			if same, err = r.beginsAlike(ctx, f); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if same {
			r.after = f.stem
			break
		}
	}
	r.current = false
	return nil
}

// beginsAlike reports whether f is the compressed copy of the open file.
func (r *reader) beginsAlike(ctx context.Context, f rotated) (bool, error) {
	z, _, err := r.openAs(ctx, f.info.Name, f.info, false)
	if err != nil {
		return false, err
	}
	defer func() { _ = z.Close() }()
	b := make([]byte, len(r.head))
	n, err := z.ReadAt(b, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	return bytes.Equal(b[:n], r.head), nil
}

// lost continues with the compressed copy of the open file, when the open file can no longer be
// read without a name. If there is no copy, there is nothing more to read; with stay, nothing
// changes.
func (r *reader) lost(ctx context.Context, stay bool) (other bool, err error) {
	was := r.place
	for range listTries {
		old, _, err := r.list(ctx)
		if err != nil {
			return false, err
		}
		if r.current {
			if err := r.find(ctx, old); err != nil {
				return false, err
			}
		}
		i := slices.IndexFunc(old, func(f rotated) bool { return f.stem == r.after && !f.whole })
		same := i >= 0
		if same {
			if same, err = r.beginsAlike(ctx, old[i]); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return false, err
			}
		}
		if !same {
			break
		}
		f, info, err := r.openAs(ctx, old[i].info.Name, old[i].info, false)
		if err == nil {
			_ = r.f.Close()
			r.f, r.info = f, info
			return true, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return false, err
		}
	}
	if stay {
		r.place = was
		return false, nil
	}
	_ = r.f.Close()
	r.f = nothing{}
	return true, nil
}

// reopen opens the file again of which nothing was read: without its first bytes nothing tells
// whether a read by inode still finds it. If it was rotated, it is the first rotated file after its
// place; if that was removed, it is the next one, which is to be read next anyway.
func (r *reader) reopen(ctx context.Context) error {
	r.current = false
	next, err := r.next(ctx, false)
	if err != nil && !errors.Is(err, host.ErrUnreachable) {
		return err
	}
	if next == nil { // the host is away, or in the middle of a rotation: rotate opens the file later
		next = &opened{f: nothing{}, after: r.after}
	}
	r.turnTo(next, time.Now())
	r.reopened = true
	return nil
}
