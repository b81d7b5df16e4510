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

// Connection is a script that finds the sshd of its connection: it sets $self, $sshd and $since.
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
	// Script is the text. A shell keeps every script that it was sent, so texts are constants,
	// and variable parts are in Args. A text of more than 64 KiB may exceed the host's argument
	// limit.
	Script string
	// Args are $1 and so on: any bytes except NUL. Any user of the host can see them with ps,
	// except for Inside.
	Args []string
	// Stdin is the script's whole standard input: any bytes, at most MaxStdin.
	Stdin []byte
	// Limit is the time after which the script and its process group are killed; rounded up to
	// seconds.
	Limit time.Duration
	// MaxStdout and MaxStderr are the bytes kept of each stream; DefaultOutput if zero. The rest
	// is read and dropped, so that the script does not block. Its output until the limit is
	// transferred, but no more than the budget.
	MaxStdout, MaxStderr int
	// Whole names a standard output whose size the host alone decides, "the list of mounts".
	// More than MaxStdout bytes of it exceed the budget Kind and end the driver.
	Whole string
	Kind  budget.Kind
	// Foreign is for programs that we did not write. They may leave processes behind that hold
	// their output open, so their streams go through pipes of their own, which takes two more
	// processes.
	Foreign bool
	// Inside is for scripts of ours that leave nothing behind and cannot block on others. They
	// run in the shell itself, without a process of their own, so neither their text nor Args
	// are in the arguments of a process. Stdin is in $input, and must be text that does not end
	// in a newline. This side enforces the limit, and the shell is lost with it; if the link
	// ends first, the script runs to its end.
	Inside bool

	turn *turn // if MaxStdout is more than DefaultOutput
}

// inHeader is the largest input that is sent among the arguments, which the remote shell reads
// byte by byte; for more it starts a program.
const inHeader = 2 << 10

// Result is the result of a script.
type Result struct {
	Stdout, Stderr []byte
	// Code is the exit code; 128 plus the signal if one ended the script, so 137 at the time
	// limit.
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
		return errors.New("shell: an inside request takes text input without a final newline")
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

// header is the line that loop.sh reads. length is that of the following script text, or 0 if
// the shell knows the script.
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

// embedded reports whether the input is in the header.
func (r *Request) embedded() bool { return r.Inside && len(r.Stdin) > 0 && len(r.Stdin) <= inHeader }

// Quote makes one word of any string without NUL, for any POSIX shell.
func Quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// quoteLine is Quote in one line: nl is a newline in loop.sh.
func quoteLine(s string) string { return strings.ReplaceAll(Quote(s), "\n", `'"$nl"'`) }

// newNonce returns 128 random bits in hexadecimal.
func newNonce() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Command is the command line, for any login shell, that runs the first length bytes of its
// standard input as a script, so that no quoting is needed.
func Command(sh string, sudo bool, length int) string {
	c := "exec "
	if sudo {
		c += "sudo -n "
	}
	return c + sh + " -c '" + Read(length) + "'"
}

// Read returns what makes a shell run a script of length bytes from its standard input. It has no
// single quote.
func Read(length int) string {
	return `eval "$(dd bs=` + strconv.Itoa(length) + ` count=1 iflag=fullblock)"`
}
