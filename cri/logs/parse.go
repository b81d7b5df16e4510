package logs

import (
	"bytes"
	"errors"
	"time"
)

// Stream is the container's output stream that a line came from.
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
	// Partial: the container's line continues in the next line of this stream.
	Partial bool
	// Content without the file's newline; it aliases the parsed bytes.
	Content []byte
}

// ErrFormat means that a line is not in the CRI log format.
var ErrFormat = errors.New("not a line of the CRI log format")

// Parse parses one line, with or without its newline, in the format that the CRI prescribes
// (kubernetes/design-proposals CRI logging):
//
//	2016-10-06T00:17:09.669794202Z stdout P content
//
// The third word has tags separated by colons. The first tag is P (partial) or F (full); later tags
// are ignored.
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
