// Package logs reads containers' log files in the CRI format: whole, from the
// end, or as they grow, through what host.Host offers. What comes out is what
// `kubectl logs` shows of a kubelet's node.
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

// LogHost is what is needed of a machine; host.Host is one.
type LogHost interface {
	Open(ctx context.Context, path string) (host.File, error)
	Stat(ctx context.Context, path string) (host.FileInfo, error)
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
}

const (
	// readBlock is how much is read forwards at a time, in bytes.
	readBlock = 64 << 10
	// longestLine bounds what is held of a line without a newline, in bytes;
	// runtimes cut theirs at some 16 KiB. A longer one is not of the format.
	longestLine = 1 << 20
	// Following looks at the file every pollMin after new lines, and less and
	// less often up to pollMax while there are none.
	pollMin = 100 * time.Millisecond
	pollMax = 500 * time.Millisecond
	// checkEvery is how often, without new lines, the container is asked for and
	// the path is looked at.
	checkEvery = time.Second
	// While a log is rotated there is none at its path: it is opened again after
	// openPause, openTries times in all.
	openTries = 5
	openPause = 200 * time.Millisecond
)

// Read writes the log at path as opts asks: TailLines (lines of the file, as the
// kubelet counts), SinceTime or SinceSeconds (by our clock: where the machine's
// differs, give SinceTime), LimitBytes, Timestamps, Stream, Follow. A nil writer
// drops its stream. Lines that are not of the CRI format are passed over.
//
// What was rotated away before is not read, as the kubelet does not read it.
//
// With Follow it goes on, over rotations, however many happen between two looks, until
// running says false and all is read, LimitBytes are written, or ctx is over, whose
// error it returns. A transport error of running changes nothing; one that says that
// the container does not exist ends it. running may be nil without Follow.
//
// A file that stays absent is an error that wraps fs.ErrNotExist.
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

// reader is one reading of one log.
type reader struct {
	h       LogHost
	path    string
	w       *writer
	running func(context.Context) (bool, error)

	f     host.File
	info  host.FileInfo // of f when it was opened
	pos   int64         // next byte to read of f
	rest  []byte        // an unfinished line before pos
	skip  bool          // inside a line that is too long
	lines int64         // how many may still be read; -1: any number
	block []byte

	place // of f among the rotated files, where the log is followed
}

// open opens the file that path names now.
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

// drain reads to the present end of the open file.
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
			// Looked at after the read: what it read was of this file then.
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

// take writes the whole lines of b and keeps what is left.
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

// unfinished writes a last line that has no newline, once nothing follows it.
func (r *reader) unfinished() error {
	if len(r.rest) == 0 || r.skip || r.lines == 0 {
		return nil
	}
	rest := r.rest
	r.rest = r.rest[:0]
	return r.line(rest, false)
}

// follow reads on until the container has ended.
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

// check asks for the container, then looks for a rotation, then reads what came
// meanwhile: in this order, nothing that was written before the container's end
// is missed.
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
