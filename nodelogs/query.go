// Package nodelogs serves /logs/ of a node: the files below /var/log of its host, and queries of the
// host's journal and of this node's own log lines.
package nodelogs

import (
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Query is a node log query, as `kubectl get --raw` and kubectl plugins send it.
type Query struct {
	// Services are the names of services; Files are paths below the directory of logs.
	Services, Files []string
	Options
}

// Options restrict which lines of services are returned.
type Options struct {
	Since, Until *time.Time
	// TailLines is the number of lines from the end, Boot the boot: 0 is the current one, -1 the one before.
	TailLines, Boot *int
	Pattern         string
}

const (
	maxServices = 4
	maxService  = 256
	// maxPattern and maxProgram bound what matching 128 KiB of lines costs.
	maxPattern   = 256
	maxProgram   = 2000
	maxTailLines = 100_000
)

// ErrNotAllowed: the query is well-formed, but asks for what cannot be combined or does not exist.
var ErrNotAllowed = errors.New("not acceptable")

type notAllowed struct{ error }

func (e notAllowed) Is(target error) bool { return target == ErrNotAllowed }

// Parse reads the parameters of a request; nil without an error if they have no query. An error that is
// not ErrNotAllowed means that a value cannot be read.
func Parse(values url.Values) (*Query, error) {
	var q Query
	for _, text := range values["query"] {
		switch {
		case strings.ContainsAny(text, `/\`):
			q.Files = append(q.Files, strings.ReplaceAll(text, `\`, "/"))
		case strings.TrimSpace(text) != "":
			q.Services = append(q.Services, text)
		}
	}
	if values.Has("query") && len(q.Files)+len(q.Services) == 0 {
		return nil, errors.New("query: may not be empty")
	}
	var err error
	if q.Since, err = parseTime(values, "sinceTime"); err != nil {
		return nil, err
	}
	if q.Until, err = parseTime(values, "untilTime"); err != nil {
		return nil, err
	}
	if q.TailLines, err = parseInt(values, "tailLines"); err != nil {
		return nil, err
	}
	if q.Boot, err = parseInt(values, "boot"); err != nil {
		return nil, err
	}
	q.Pattern = values.Get("pattern")
	if len(q.Files)+len(q.Services) == 0 && q.Options == (Options{}) {
		return nil, nil
	}
	if err := q.check(); err != nil {
		return nil, notAllowed{err}
	}
	return &q, nil
}

func parseTime(values url.Values, name string) (*time.Time, error) {
	text := values.Get(name)
	if text == "" {
		return nil, nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, fmt.Errorf("%s: %q is not a time of RFC 3339", name, text)
	}
	return &at, nil
}

func parseInt(values url.Values, name string) (*int, error) {
	text := values.Get(name)
	if text == "" {
		return nil, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %q is not a number", name, text)
	}
	return &n, nil
}

// unsafe are the characters that the name of a service must not have: it becomes an argument of journalctl.
var unsafe = regexp.MustCompile(`[^a-zA-Z\-_.:0-9@]`)

func (q *Query) check() error {
	for _, s := range q.Services {
		switch {
		case len(s) > maxService:
			return fmt.Errorf("query: the name of a service has at most %d characters", maxService)
		case unsafe.MatchString(s):
			return fmt.Errorf("query: the name of the service %q has unsupported characters", s)
		}
	}
	switch {
	case len(q.Services) > maxServices:
		return fmt.Errorf("query: at most %d services", maxServices)
	case len(q.Services)+len(q.Files) == 0:
		return errors.New("query: cannot be empty with options")
	case len(q.Services) > 0 && len(q.Files) > 0:
		return errors.New("query: cannot specify a file and a service")
	case len(q.Files) > 1:
		return errors.New("query: cannot specify more than one file")
	case len(q.Files) == 1 && q.Options != (Options{}):
		return errors.New("query: cannot specify a file with options")
	case q.Since != nil && q.Until != nil && q.Since.After(*q.Until):
		return errors.New("untilTime: must be after sinceTime")
	case q.Boot != nil && *q.Boot > 0:
		return errors.New("boot: must be less than 1")
	case q.TailLines != nil && (*q.TailLines < 0 || *q.TailLines > maxTailLines):
		return fmt.Errorf("tailLines: must be between 0 and %d", maxTailLines)
	}
	parsed, err := syntax.Parse(q.Pattern, syntax.Perl)
	if err != nil {
		return fmt.Errorf("pattern: %w", err)
	}
	if slices.ContainsFunc(q.Services, isOwn) {
		return cheap(q.Pattern, parsed)
	}
	return nil
}

// cheap refuses a pattern that would take this process long to match: the journal of a host is matched
// there, but the lines of this process here.
func cheap(pattern string, parsed *syntax.Regexp) error {
	if len(pattern) > maxPattern {
		return fmt.Errorf("pattern: at most %d characters for the lines of %s", maxPattern, ownServices)
	}
	program, err := syntax.Compile(parsed.Simplify())
	if err != nil {
		return fmt.Errorf("pattern: %w", err)
	}
	if len(program.Inst) > maxProgram {
		return errors.New("pattern: it repeats too much")
	}
	return nil
}

// journalctl returns the command that prints the lines of these services.
func (o Options) journalctl(services []string) []string {
	const layout = "2006-1-2 15:4:5"
	args := []string{"journalctl", "--utc", "--no-pager", "--output=short-precise"}
	if o.Since != nil {
		args = append(args, "--since="+o.Since.UTC().Format(layout))
	}
	if o.Until != nil {
		args = append(args, "--until="+o.Until.UTC().Format(layout))
	}
	if o.TailLines != nil {
		args = append(args, "--pager-end", "--lines="+strconv.Itoa(*o.TailLines))
	}
	for _, s := range services {
		args = append(args, "--unit="+s)
	}
	if o.Pattern != "" {
		args = append(args, "--grep="+o.Pattern)
	}
	if o.Boot != nil {
		args = append(args, "--boot", strconv.Itoa(*o.Boot))
	}
	return args
}
