package nodelogs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
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

	mu     sync.Mutex
	hosts  map[string]*lines // "" has the lines of no host
	record []line            // lines of a record that has more
	last   string            // host of the last record, for lines that continue it
	part   []byte            // a line without its end
}

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
	// maxLine bounds one line, and maxRecord the lines of a record that wait for its host.
	maxLine   = 16 << 10
	maxRecord = 256
	// lineCost is what a line takes beside its text.
	lineCost = 64
)

// NewOwn returns a writer that passes everything on to next.
func NewOwn(next io.Writer, pid int) *Own {
	return &Own{next: next, name: "kubelet", pid: pid, hosts: map[string]*lines{}}
}

// hostOf finds the host that a line is about, in the text and in the JSON form of the log: klog writes
// text, and passes its keys and values to no one else. A line that it does not find is the process's.
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

// add adds a line. klog writes a value of several lines as `name=<`, the lines behind a tab, and
// ` >` with what follows the value, which may be the host of them all.
func (o *Own) add(now time.Time, text string) {
	rest := strings.HasPrefix(text, " >")
	continues := rest || strings.HasPrefix(text, "\t") || text == ""
	if !continues {
		o.store()
		o.last = ""
	}
	if !continues || rest {
		if m := hostOf.FindStringSubmatch(text); m != nil {
			o.last = m[1]
		}
	}
	began := !continues || len(o.record) > 0
	o.record = append(o.record, line{now, text})
	if more := began && (strings.HasSuffix(text, "=<") || continues && !rest); !more || len(o.record) == maxRecord {
		o.store()
	}
}

// store keeps the lines of the record.
func (o *Own) store() {
	if len(o.record) == 0 {
		return
	}
	l := o.hosts[o.last]
	if l == nil {
		l = &lines{}
		o.hosts[o.last] = l
	}
	for _, line := range o.record {
		l.all = append(l.all, line)
		l.size += len(line.text) + lineCost
	}
	o.record = o.record[:0]
	drop := 0
	for l.size > keep && drop < len(l.all)-1 {
		l.size -= len(l.all[drop].text) + lineCost
		drop++
	}
	l.all = slices.Delete(l.all, 0, drop)
}

// Forget drops the lines of the hosts that are gone.
func (o *Own) Forget(gone func(host string) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.hosts, func(host string, _ *lines) bool { return host != "" && gone(host) })
}

// Print prints the lines about the host and those of the process, in the form of journalctl. node is the name
// of the node.
func (o *Own) Print(ctx context.Context, w io.Writer, host, node string, options Options) error {
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
		return ctx.Err() != nil || options.Since != nil && l.at.Before(*options.Since) || options.Until != nil && l.at.After(*options.Until) || !pattern.MatchString(l.text)
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
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
