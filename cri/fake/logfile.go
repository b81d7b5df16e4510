package fake

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// logLine is the longest content of one line, in bytes; longer output is split into partial lines,
// as with containerd's max_container_log_line_size.
const logLine = 16 << 10

// logFile is a container's log in the CRI format.
type logFile struct {
	mu   sync.Mutex
	path string
	now  func() time.Time
	f    *os.File
	rest map[string][]byte // an unfinished line, by stream
}

// openLog opens the file for appending; without a path, all output is dropped.
func openLog(path string, now func() time.Time) (*logFile, error) {
	l := &logFile{path: path, now: now, rest: map[string][]byte{}}
	if path == "" {
		return l, nil
	}
	return l, l.open()
}

func (l *logFile) open() error {
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	if err != nil {
		return fmt.Errorf("failed to create and open log file: %w", err)
	}
	l.f = f
	return nil
}

func (l *logFile) reopen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.f == nil {
		return nil
	}
	old := l.f
	if err := l.open(); err != nil {
		return err
	}
	return old.Close()
}

func (l *logFile) stream(name string) io.Writer { return logStream{l, name} }

type logStream struct {
	l    *logFile
	name string
}

func (s logStream) Write(b []byte) (int, error) {
	s.l.mu.Lock()
	defer s.l.mu.Unlock()
	data := append(s.l.rest[s.name], b...)
	for {
		i := bytes.IndexByte(data, '\n')
		switch {
		case i >= 0 && i <= logLine:
			s.l.write(s.name, "F", data[:i])
			data = data[i+1:]
		case len(data) >= logLine:
			s.l.write(s.name, "P", data[:logLine])
			data = data[logLine:]
		default:
			s.l.rest[s.name] = append([]byte(nil), data...)
			return len(b), nil
		}
	}
}

func (l *logFile) write(stream, tag string, content []byte) {
	if l.f != nil {
		_, _ = fmt.Fprintf(l.f, "%s %s %s %s\n", l.now().UTC().Format(time.RFC3339Nano), stream, tag, content)
	}
}

func (l *logFile) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for stream, rest := range l.rest {
		if len(rest) > 0 {
			l.write(stream, "P", rest)
		}
	}
	l.rest = map[string][]byte{}
	if l.f != nil {
		_ = l.f.Close()
		l.f = nil
	}
}
