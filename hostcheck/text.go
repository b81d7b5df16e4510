package hostcheck

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/bowline-k8s/bowline/pod"
)

const (
	width  = 100                                                  // columns
	indent = len("warning") + 2 + len("reachability") + len("  ") // column of Line.Found
	reset  = "\033[0m"
)

var colours = map[Level]string{OK: "\033[32m", Warning: "\033[33m", Failure: "\033[31m"}

// Text formats the report for a terminal, with each fix below the line that it belongs to.
func (r *Report) Text(colour bool) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", pod.Printable(r.Endpoint))
	for _, l := range r.Lines {
		level := fmt.Sprintf("%-7s", l.Level)
		if colour {
			level = colours[l.Level] + level + reset
		}
		fmt.Fprintf(&b, "%s  %-12s  %s\n", level, l.Subject, wrapped(l.Found))
		label := "fix:"
		for m := range strings.SplitSeq(l.Fix, "\n") {
			if m != "" {
				fmt.Fprintf(&b, "%*s  %s\n", indent-2, label, wrapped(m))
			}
			label = ""
		}
	}
	if len(r.NotLookedAt) > 0 {
		fmt.Fprintf(&b, "%-*s%s\n", indent, "not looked at", wrapped(strings.Join(r.NotLookedAt, ", ")))
	}
	fmt.Fprintf(&b, "\n%s\n", r.summary())
	return b.String()
}

func (r *Report) summary() string {
	warnings := ""
	if n := r.count(Warning); n > 0 {
		warnings = ", " + plural(n, "warning")
	}
	if n := r.count(Failure); n > 0 {
		return "This host cannot be a node yet: " + plural(n, "failure") + warnings + "."
	}
	return "This host can be a node: no failure" + warnings + "."
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// wrapped makes a text printable and wraps it at spaces to fit right of the indent. A longer word
// stays whole, because it may be a path or a key to copy.
func wrapped(text string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		word = pod.Printable(word)
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > width-indent:
			b.WriteString("\n" + strings.Repeat(" ", indent))
			column = 0
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}
