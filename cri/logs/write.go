package logs

import (
	"errors"
	"io"
	"math"
	"time"

	v1 "k8s.io/api/core/v1"
)

// errLimit means that LimitBytes have been written.
var errLimit = errors.New("byte limit reached")

// stampFormat is the timestamp before a line with the option Timestamps; its width is fixed.
const stampFormat = "2006-01-02T15:04:05.000000000Z07:00"

// writer writes lines according to the options.
type writer struct {
	to       [2]io.Writer // by Stream; nil drops the stream
	since    time.Time
	stamps   bool
	left     int64 // bytes still allowed
	midLine  [2]bool
	scratch  []byte
	received int64 // lines seen, written or not
}

func newWriter(opts *v1.PodLogOptions, stdout, stderr io.Writer) *writer {
	w := &writer{to: [2]io.Writer{stdout, stderr}, stamps: opts.Timestamps, left: math.MaxInt64}
	if opts.Stream != nil {
		switch *opts.Stream {
		case v1.LogStreamStdout:
			w.to[Stderr] = nil
		case v1.LogStreamStderr:
			w.to[Stdout] = nil
		}
	}
	if opts.LimitBytes != nil {
		w.left = *opts.LimitBytes
	}
	switch {
	case opts.SinceTime != nil:
		w.since = opts.SinceTime.Time
	case opts.SinceSeconds != nil:
		w.since = time.Now().Add(-time.Duration(*opts.SinceSeconds) * time.Second)
	}
	return w
}

// line writes one line of the file; whole means that it ended with a newline.
func (w *writer) line(l Line, whole bool) error {
	w.received++
	if l.Time.Before(w.since) {
		return nil
	}
	to := w.to[l.Stream]
	if to == nil {
		return nil
	}
	b := w.scratch[:0]
	if w.stamps && !w.midLine[l.Stream] {
		b = append(l.Time.AppendFormat(b, stampFormat), ' ')
	}
	b = append(b, l.Content...)
	w.midLine[l.Stream] = l.Partial
	if !l.Partial && whole {
		b = append(b, '\n')
	}
	w.scratch = b[:0]
	if int64(len(b)) > w.left {
		b = b[:w.left]
	}
	n, err := to.Write(b)
	w.left -= int64(n)
	if err != nil {
		return err
	}
	if n < len(b) {
		return io.ErrShortWrite
	}
	if w.left <= 0 {
		return errLimit
	}
	return nil
}
