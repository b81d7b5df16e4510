package shell

import (
	"crypto/rand"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
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
	// not, and what it writes until its limit travels.
	MaxStdout, MaxStderr int
	// Foreign is for programs that we did not write. They may leave processes
	// behind that hold their output: their streams go through pipes of their own,
	// which costs two more processes.
	Foreign bool
}

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
	how := "direct"
	if r.Foreign {
		how = "foreign"
	}
	seconds := int64((r.Limit + time.Second - 1) / time.Second)
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %d %d %d %d", nonce, how, seconds, len(r.Stdin), id, length)
	for _, a := range r.Args {
		b.WriteByte(' ')
		b.WriteString(quoteLine(a))
	}
	b.WriteByte('\n')
	return b.String()
}

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
