package shell

import (
	"bytes"
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/bowline-k8s/bowline/host/budget"
)

//go:embed loop.sh
var loop string

// Connection is a script that finds the sshd above it: $self, $sshd and $since.
//
//go:embed connection.sh
var Connection string

// Defaults of a Request, and its bounds.
const (
	DefaultOutput = 1 << 20  // bytes of each stream that are kept
	MaxStdin      = 64 << 20 // bytes
	maxArgs       = 1 << 20  // bytes of all arguments, quoted
)

// Request is one run of a script.
type Request struct {
	// Script is the text. A shell keeps every script that it was sent, so texts
	// are constants, and what varies is in Args. Longer than 64 KiB it may not
	// fit the machine's argument limit.
	Script string
	// Args are $1 and so on: any bytes but NUL. Whoever may run ps there sees them.
	Args []string
	// Stdin is the script's whole standard input: any bytes, at most MaxStdin.
	Stdin []byte
	// Limit kills the script, with its process group; rounded up to seconds.
	Limit time.Duration
	// MaxStdout and MaxStderr are the bytes kept of each stream; DefaultOutput
	// where zero. The rest is read and dropped: a script that must not block does
	// not, and what it writes until its limit travels, but no more than a budget of it.
	MaxStdout, MaxStderr int
	// Whole names a standard output whose size the host alone decides, "the list of
	// mounts". One of more than MaxStdout exceeds the budget Kind, and ends the driver.
	Whole string
	Kind  budget.Kind
	// Foreign is for programs that we did not write. They may leave processes
	// behind that hold their output: their streams go through pipes of their own,
	// which costs two more processes.
	Foreign bool
	// Inside is for scripts of ours that leave nothing behind and cannot wait for
	// anybody: they run in the shell itself, which starts no process for them, so
	// that neither their text nor Args are in the arguments of a process. Stdin is
	// in $input, and is text that ends in no newline. The limit is kept from here,
	// and costs the shell; where the link goes first the script runs to its end.
	Inside bool

	turn *turn // where MaxStdout is more than DefaultOutput
}

// inHeader is how much of an input travels among the arguments, which the far end
// reads byte by byte; for more it starts a program.
const inHeader = 2 << 10

// Result is how a script ended.
type Result struct {
	Stdout, Stderr []byte
	// Code is the exit code; 128 plus the signal where one ended the script, so
	// 137 at the time limit.
	Code int
}

func (r *Request) complete() error {
	if r.Script == "" {
		return errors.New("shell: a request without a script")
	}
	if strings.Contains(r.Script, "\x00") {
		return errors.New("shell: the script contains a zero byte")
	}
	if r.Limit <= 0 {
		return errors.New("shell: a request without a time limit")
	}
	if r.Inside && (r.Foreign || bytes.IndexByte(r.Stdin, 0) >= 0 || bytes.HasSuffix(r.Stdin, []byte("\n"))) {
		return errors.New("shell: what runs inside is ours, and its input is text that ends in no newline")
	}
	if len(r.Stdin) > MaxStdin {
		return fmt.Errorf("shell: %d bytes of standard input; at most %d", len(r.Stdin), MaxStdin)
	}
	size := 0
	for i, a := range r.Args {
		if strings.Contains(a, "\x00") {
			return fmt.Errorf("shell: argument %d contains a zero byte", i+1)
		}
		size += len(a)
	}
	if size > maxArgs {
		return fmt.Errorf("shell: %d bytes of arguments; at most %d", size, maxArgs)
	}
	if r.MaxStdout == 0 {
		r.MaxStdout = DefaultOutput
	}
	if r.MaxStderr == 0 {
		r.MaxStderr = DefaultOutput
	}
	return nil
}

// header is the line that loop.sh reads; length is that of the script text that
// follows, or 0 where the shell knows the script.
func (r *Request) header(nonce string, id, length int) string {
	how, stdin, args := "direct", strconv.Itoa(len(r.Stdin)), r.Args
	switch {
	case r.Foreign:
		how = "foreign"
	case r.Inside:
		how = "inside"
		if r.embedded() {
			stdin, args = "-", append([]string{string(r.Stdin)}, args...)
		}
	}
	seconds := int64((r.Limit + time.Second - 1) / time.Second)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %d %s %d %d", nonce, how, seconds, stdin, id, length)
	for _, a := range args {
		b.WriteByte(' ')
		b.WriteString(quoteLine(a))
	}
	b.WriteByte('\n')
	return b.String()
}

// embedded says whether the input is in the header.
func (r *Request) embedded() bool { return r.Inside && len(r.Stdin) > 0 && len(r.Stdin) <= inHeader }

// Quote makes one word of any string without NUL, for any POSIX shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// quoteLine is Quote in one line: nl is a newline in loop.sh.
func quoteLine(s string) string { return strings.ReplaceAll(Quote(s), "\n", `'"$nl"'`) }

// newNonce is 128 random bits in hexadecimal.
func newNonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Command is the command line, for any login shell, that runs a text which is the
// first len(text) bytes of its standard input: no quoting can go wrong.
func Command(sh string, sudo bool, length int) string {
	c := "exec "
	if sudo {
		c += "sudo -n "
	}
	return c + sh + ` -c 'eval "$(dd bs=` + strconv.Itoa(length) + ` count=1 iflag=fullblock)"'`
}
