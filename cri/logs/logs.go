// Package logs reads container log files in the CRI format through host.Host: whole, from the end,
// or as they grow. Its output is what `kubectl logs` shows for a kubelet's node.
package logs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/host"
)

// LogHost is the part of host.Host that this package needs.
type LogHost interface {
	Open(ctx context.Context, path string) (host.File, error)
	Stat(ctx context.Context, path string) (host.FileInfo, error)
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
}

const (
	// readBlock is the size of a forward read, in bytes.
	readBlock = 64 << 10
	// longestLine limits the buffer of an unfinished line, in bytes; runtimes cut lines at
	// about 16 KiB. A longer line is not in the CRI format and is skipped.
	longestLine = 1 << 20
	// Follow polls the file every pollMin after new lines; without new lines the pause grows to
	// pollMax.
	pollMin = 100 * time.Millisecond
	pollMax = 500 * time.Millisecond
	// checkEvery is how often Follow checks the container's state and the file at the path.
	checkEvery = time.Second
	// During a rotation there is no file at the path: try to open it openTries times in all, with
	// openPause in between.
	openTries = 5
	openPause = 200 * time.Millisecond
)

// Read writes the log at path according to opts: TailLines (lines of the file, as the kubelet
// counts), SinceTime or SinceSeconds (by our clock: if the host's differs, use SinceTime),
// LimitBytes, Timestamps, Stream, Follow. A nil writer drops its stream. Lines that are not in the
// CRI format are skipped. Like the kubelet, Read ignores files that were rotated before it began.
//
// With Follow, Read continues across rotations, however many happen between two polls. It ends when
// running returns false and everything is read, when LimitBytes are written, or when ctx ends, and
// then returns the error of ctx. A transport error of running is ignored; if it returns that the
// container does not exist, Read ends as well. Without Follow, running may be nil.
//
// If the file stays absent, the error wraps fs.ErrNotExist.
func Read(ctx context.Context, h LogHost, path string, opts *v1.PodLogOptions, running func(ctx context.Context) (bool, error), stdout, stderr io.Writer) error {
	r := &reader{h: h, path: path, w: newWriter(opts, stdout, stderr), lines: -1, running: running}
	if r.w.left <= 0 {
		return nil
	}
	if err := r.open(ctx, opts.Follow); err != nil {
		return fmt.Errorf("open the log %s: %w", path, err)
	}
	defer func() { _ = r.f.Close() }()
	if opts.TailLines != nil {
		var err error
		if r.pos, err = tailStart(ctx, r.f, r.info.Size, *opts.TailLines); err != nil {
			return fmt.Errorf("find the last %d lines of %s: %w", *opts.TailLines, path, err)
		}
		if !opts.Follow {
			r.lines = *opts.TailLines
		}
	}
	var err error
	if opts.Follow {
		err = r.follow(ctx)
	} else {
		err = r.drain(ctx)
		if err == nil {
			err = r.unfinished()
		}
	}
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// reader reads one log once.
type reader struct {
	h       LogHost
	path    string
	w       *writer
	running func(context.Context) (bool, error)

	f     host.File
	info  host.FileInfo // of f when it was opened
	pos   int64         // offset in f of the next byte to read
	rest  []byte        // the unfinished line before pos
	skip  bool          // inside an overlong line
	lines int64         // how many more lines to read; -1: no limit
	block []byte

	place // of f among the rotated files, if following
}

// open opens the file that is at path now.
func (r *reader) open(ctx context.Context, follow bool) error {
	for try := 1; ; try++ {
		f, err := r.h.Open(ctx, r.path)
		if err == nil {
			if r.info, err = f.Stat(); err != nil {
				_ = f.Close()
				return err
			}
			r.f = f
			break
		}
		if !errors.Is(err, fs.ErrNotExist) || try == openTries {
			return err
		}
		if err := wait(ctx, openPause); err != nil {
			return err
		}
	}
	if !follow {
		return nil
	}
	if err := r.locate(ctx); err != nil {
		_ = r.f.Close()
		return err
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// drain reads to the current end of the open file.
func (r *reader) drain(ctx context.Context) error {
	if r.block == nil {
		r.block = make([]byte, readBlock)
	}
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if r.lines == 0 {
			return nil
		}
		n, err := r.f.ReadAt(r.block, r.pos)
		if r.following && (err == nil || errors.Is(err, io.EOF) || errors.Is(err, fs.ErrNotExist)) {
			// Check after the read: if f is still our file now, the data is from our file.
			other, serr := r.sure(ctx, errors.Is(err, fs.ErrNotExist))
			if serr != nil {
				return fmt.Errorf("read the log %s: %w", r.path, serr)
			}
			if other {
				continue
			}
		}
		r.see(r.block[:n])
		r.pos += int64(n)
		if werr := r.take(r.block[:n]); werr != nil {
			return werr
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return fmt.Errorf("read the log %s: %w", r.path, err)
		}
		if n == 0 || err != nil {
			return nil
		}
	}
}

// take writes the complete lines of b and keeps the rest.
func (r *reader) take(b []byte) error {
	for r.lines != 0 {
		i := bytes.IndexByte(b, '\n')
		if i < 0 {
			break
		}
		line := b[:i]
		if len(r.rest) > 0 {
			r.rest = append(r.rest, line...)
			line = r.rest
		}
		b = b[i+1:]
		skip := r.skip
		r.skip = false
		if !skip {
			if err := r.line(line, true); err != nil {
				return err
			}
		}
		r.rest = r.rest[:0]
	}
	if r.lines == 0 {
		return nil
	}
	if r.rest = append(r.rest, b...); len(r.rest) > longestLine {
		r.rest, r.skip = r.rest[:0], true
	}
	return nil
}

func (r *reader) line(b []byte, whole bool) error {
	l, err := Parse(b)
	if err != nil {
		return nil
	}
	if err := r.w.line(l, whole); err != nil {
		return err
	}
	if r.lines > 0 {
		r.lines--
	}
	return nil
}

// unfinished writes a last line without a newline, when nothing can follow it.
func (r *reader) unfinished() error {
	if len(r.rest) == 0 || r.skip || r.lines == 0 {
		return nil
	}
	rest := r.rest
	r.rest = r.rest[:0]
	return r.line(rest, false)
}

// follow reads until the container has ended.
func (r *reader) follow(ctx context.Context) error {
	timer := time.NewTimer(0)
	defer timer.Stop()
	<-timer.C
	pause, checked := pollMin, time.Time{}
	for {
		before := r.w.received
		if err := r.drain(ctx); err != nil {
			return err
		}
		if r.w.received != before {
			pause = pollMin
		}
		if time.Since(checked) >= checkEvery {
			checked = time.Now()
			ended, err := r.check(ctx)
			if err != nil || ended {
				return err
			}
		}
		timer.Reset(pause)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
		pause = min(pause*3/2, pollMax)
	}
}

// check queries the container's state, then handles a rotation, then reads the new lines. In this
// order it misses no line that the container wrote before its end.
func (r *reader) check(ctx context.Context) (ended bool, err error) {
	running, err := r.running(ctx)
	switch {
	case cri.IsTransport(err):
		running = true
	case cri.IsNotFound(err):
		running = false
	case err != nil:
		return false, err
	}
	if err := r.rotate(ctx); err != nil {
		return false, err
	}
	if err := r.drain(ctx); err != nil || running {
		return false, err
	}
	return true, r.unfinished()
}
