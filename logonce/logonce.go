// Package logonce keeps a log from repeating itself.
package logonce

// Failure is the last outcome of something that is tried again and again. Its callers log an error
// once for as long as it stays the same. Each attempt makes an error value of its own, and only the
// texts of two values show that they say the same. So Failure compares texts, which decides whether
// something is said again to a person, in a log, an event or a message, and about nothing else.
type Failure struct {
	failing bool
	text    string
}

// Changed records an outcome, and reports whether it differs from the previous one. A nil error is
// success, as is the zero Failure.
func (f *Failure) Changed(err error) bool {
	failing, text := err != nil, ""
	if failing {
		text = err.Error()
	}
	changed := failing != f.failing || text != f.text
	f.failing, f.text = failing, text
	return changed
}
