package nodelogs

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// Own keeps the newest log lines of this process for each host, because a node's "kubelet" is this
// process: its host has no unit of that name. The zero value is not ready; use NewOwn.
type Own struct {
	next io.Writer
	name string // of the program, in the lines that are returned
	pid  int

	mu    sync.Mutex
	hosts map[string]*lines // "" has the lines of no host
	last  string            // host of the last line, for lines that continue it
	part  []byte            // a line without its end
}

// Process has the lines of this process. The log goes through it to standard error.
var Process = NewOwn(os.Stderr, os.Getpid())

// lines are the newest lines of one host, oldest first.
type lines struct {
	all  []line
	size int
}

type line struct {
	at   time.Time
	text string
}

const (
	// keep is how many bytes of lines are kept for each host, and for the process.
	keep = 64 << 10
	// maxLine bounds one line.
	maxLine = 16 << 10
)

// NewOwn returns a writer that passes everything on to next.
func NewOwn(next io.Writer, pid int) *Own {
	return &Own{next: next, name: "kubelet", pid: pid, hosts: map[string]*lines{}}
}

// hostOf finds the host that a line is about, in the text and in the JSON form of the log.
var hostOf = regexp.MustCompile(`(?: host="|"host":")((?:[^"\\]|\\.)*)"`)

func (o *Own) Write(p []byte) (int, error) {
	o.keep(p)
	return o.next.Write(p)
}

func (o *Own) keep(p []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	now := time.Now()
	for len(p) > 0 {
		text, rest, whole := bytes.Cut(p, []byte("\n"))
		if room := maxLine - len(o.part); room > 0 {
			o.part = append(o.part, text[:min(len(text), room)]...)
		}
		p = rest
		if !whole {
			return
		}
		o.add(now, string(o.part))
		o.part = o.part[:0]
	}
}

func (o *Own) add(now time.Time, text string) {
	continues := strings.HasPrefix(text, "\t") || strings.HasPrefix(text, " ") || text == ""
	if !continues {
		o.last = ""
		if m := hostOf.FindStringSubmatch(text); m != nil {
			o.last = m[1]
		}
	}
	l := o.hosts[o.last]
	if l == nil {
		l = &lines{}
		o.hosts[o.last] = l
	}
	l.all = append(l.all, line{now, text})
	l.size += len(text)
	drop := 0
	for l.size > keep && drop < len(l.all)-1 {
		l.size -= len(l.all[drop].text)
		drop++
	}
	l.all = slices.Delete(l.all, 0, drop)
}

// Forget drops the lines of a host that this process no longer manages.
func (o *Own) Forget(host string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.hosts, host)
}

// Print prints the lines about the host and those of the process, in the form of journalctl. node is the name
// of the node.
func (o *Own) Print(w io.Writer, host, node string, options Options) error {
	o.mu.Lock()
	var found []line
	for _, name := range []string{"", host} {
		if l := o.hosts[name]; l != nil {
			found = append(found, l.all...)
		}
	}
	o.mu.Unlock()
	slices.SortStableFunc(found, func(a, b line) int { return a.at.Compare(b.at) })
	pattern, err := regexp.Compile(options.Pattern)
	if err != nil {
		return fmt.Errorf("pattern: %w", err)
	}
	found = slices.DeleteFunc(found, func(l line) bool {
		return options.Since != nil && l.at.Before(*options.Since) || options.Until != nil && l.at.After(*options.Until) || !pattern.MatchString(l.text)
	})
	if options.Boot != nil && *options.Boot < 0 {
		found = nil // they are of this process
	}
	if n := options.TailLines; n != nil && len(found) > *n {
		found = found[len(found)-*n:]
	}
	if len(found) == 0 {
		_, err := io.WriteString(w, "-- No entries --\n")
		return err
	}
	for _, l := range found {
		if _, err := fmt.Fprintf(w, "%s %s %s[%d]: %s\n", l.at.UTC().Format("Jan 02 15:04:05.000000"), node, o.name, o.pid, l.text); err != nil {
			return err
		}
	}
	return nil
}
