package link

import "io"

// Session is a program on the host with pipes. Reads and writes fail when the link does. Close
// ends the program's input and its channel, not the program.
type Session interface {
	Stdin() io.WriteCloser
	Stdout() io.Reader
	Stderr() io.Reader
	// Wait waits for the end of the program and returns its exit code; -1 if the link ended
	// first.
	Wait() (code int, err error)
	Close() error
}
