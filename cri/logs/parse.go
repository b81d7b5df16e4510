package logs

import (
	"bytes"
	"errors"
	"time"
)

// Stream is the stream of the container that a line came from.
type Stream byte

const (
	Stdout Stream = iota
	Stderr
)

func (s Stream) String() string {
	if s == Stderr {
		return "stderr"
	}
	return "stdout"
}

// Line is one line of a log file.
type Line struct {
	Time   time.Time
	Stream Stream
	// Partial: the container's own line goes on in the next line of this stream.
	Partial bool
	// Content without the file's newline; it aliases what was parsed.
	Content []byte
}

// ErrFormat: a line that is not of the CRI format.
var ErrFormat = errors.New("not a line of the CRI log format")

// Parse reads one line, with or without its newline, of the form that the CRI
// prescribes (kubernetes/design-proposals CRI logging):
//
//	2016-10-06T00:17:09.669794202Z stdout P content
//
// The third word holds tags separated by colons, of which the first is P
// (partial) or F (full); words that came later are passed over.
func Parse(b []byte) (Line, error) {
	b = bytes.TrimSuffix(b, []byte{'\n'})
	stamp, rest, ok := bytes.Cut(b, []byte{' '})
	if !ok {
		return Line{}, ErrFormat
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return Line{}, ErrFormat
	}
	l := Line{Time: at}
	name, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return Line{}, ErrFormat
	}
	switch string(name) {
	case "stdout":
	case "stderr":
		l.Stream = Stderr
	default:
		return Line{}, ErrFormat
	}
	tags, content, ok := bytes.Cut(rest, []byte{' '})
	if !ok {
		return Line{}, ErrFormat
	}
	first, _, _ := bytes.Cut(tags, []byte{':'})
	l.Partial = string(first) == "P"
	l.Content = content
	return l, nil
}
