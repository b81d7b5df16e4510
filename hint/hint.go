// Package hint keeps the remedy for an error apart from the sentence that says what failed. The
// package is pure: a hint depends on the error alone.
package hint

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// hinted is an error with a hint. Its text is that of the error alone.
type hinted struct {
	error
	hint string
}

func (h *hinted) Unwrap() error { return h.error }

// Hint makes a *hinted one of the errors that Of finds.
func (h *hinted) Hint() string { return h.hint }

// Add returns err with a hint: what its reader can do about it, as an imperative without a capital
// and without a full stop. A command or a line of configuration may be on a line of its own. The
// result is nil if err is.
func Add(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &hinted{err, fmt.Sprintf(format, args...)}
}

// Of returns the hints of err and of all that it wraps, the outermost first and each once, on lines
// of their own. It is empty if there is none. Other types of errors have a hint by their method
// Hint.
func Of(err error) string { return strings.Join(all(err, nil), "\n") }

// Text returns the text of an error with its hints as further sentences, for a condition or an
// event.
func Text(err error) string {
	text := err.Error()
	for _, h := range all(err, nil) {
		first, size := utf8.DecodeRuneInString(h)
		h = strings.ReplaceAll(string(unicode.ToUpper(first))+h[size:], ":\n", ": ")
		text = strings.TrimSuffix(text, ".") + ". " + strings.ReplaceAll(h, "\n", "; ")
	}
	return text
}

// With returns the keys and values of a log entry about err: those given, and the hint if err has
// one.
func With(err error, keysAndValues ...any) []any {
	if h := Of(err); h != "" {
		return append(slices.Clip(keysAndValues), "hint", h)
	}
	return keysAndValues
}

// all appends the hints of err to found.
func all(err error, found []string) []string {
	if err == nil {
		return found
	}
	if h, ok := err.(interface{ Hint() string }); ok && h.Hint() != "" && !slices.Contains(found, h.Hint()) {
		found = append(found, h.Hint())
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range several.Unwrap() {
			found = all(one, found)
		}
		return found
	}
	return all(errors.Unwrap(err), found)
}
