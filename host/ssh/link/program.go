package link

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/bowline-k8s/bowline/host"
)

// program is a Session: a channel of type session with a program behind it.
type program struct {
	channel        ssh.Channel
	stdin          *writer
	stdout, stderr *reader
	closed         chan struct{}
	once           sync.Once

	connection int // the number of its control connection

	done chan struct{} // closed when the channel is over; code and err are set
	code int
	err  error
}

// session opens a channel and requests kind ("exec", "subsystem") with name.
func (l *Link) session(ctx context.Context, n *keeper, label, kind, name string) (Session, error) {
	object := fmt.Sprintf("%s at %s", kind, l.target.Address)
	if kind == "subsystem" {
		object = fmt.Sprintf("subsystem %s at %s", name, l.target.Address)
	}
	return call(ctx, n, label, "session", object, func(ctx context.Context, c *connection) (Session, error) {
		delay := wait.Backoff{Duration: minSessionDelay, Factor: 2, Steps: 10, Cap: maxSessionDelay}
		var refused error
		for {
			s, err := waitFor(ctx, c.budget, func() (Session, error) { return c.start(kind, name) }, drop[Session])
			switch {
			case c.full(err):
				refused = err
			case err != nil && refused != nil && ctx.Err() != nil:
				return nil, refused
			default:
				return s, err
			}
			t := time.NewTimer(delay.Step())
			select {
			case <-t.C:
				continue
			case <-ctx.Done():
				err = refused
			case <-c.ended:
				err = errCut
			}
			t.Stop()
			return nil, err
		}
	})
}

// sshd allows a connection ten sessions by default, and counts one until its program has ended, also
// after we have closed it. So after several programs were given up, the next session has to wait.
const (
	minSessionDelay = 50 * time.Millisecond
	maxSessionDelay = time.Second
)

// full reports whether err says that the host opens no further session for now. A host that has
// opened none on this connection does not allow any.
func (c *connection) full(err error) bool {
	var refused *ssh.OpenChannelError
	return c.hadSession.Load() && errors.As(err, &refused) &&
		(refused.Reason == ssh.ConnectionFailed || refused.Reason == ssh.ResourceShortage)
}

// start opens a session and starts its program.
func (c *connection) start(kind, name string) (Session, error) {
	p := c.newProgram()
	channel, err := c.open("session", nil, func(requests <-chan *ssh.Request) { p.serve(c, requests) })
	if err != nil {
		return nil, err
	}
	c.hadSession.Store(true)
	p.over(channel, c)
	ok, err := channel.SendRequest(kind, true, ssh.Marshal(struct{ Name string }{name}))
	if err != nil || !ok {
		p.Close()
	}
	if err == nil && !ok {
		err = &answerError{text: "sshd refuses it: look for ForceCommand, Subsystem and the shell of the login user"}
	}
	if err != nil {
		return nil, err
	}
	return p, nil
}

func (c *connection) newProgram() *program {
	return &program{closed: make(chan struct{}), connection: c.number, done: make(chan struct{})}
}

// over sets the channel of a program.
func (p *program) over(channel ssh.Channel, c *connection) {
	p.channel = channel
	p.stdin = newWriter(channel, channel.CloseWrite, p.closed, c.writeEnded)
	p.stdout = newReader(channel, p.closed, c.readEnded)
	p.stderr = newReader(channel.Stderr(), p.closed, c.readEnded)
}

// serve waits for the exit status; it ends with the channel.
func (p *program) serve(c *connection, requests <-chan *ssh.Request) {
	p.code = -1
	known := false
	for r := range requests {
		switch r.Type {
		case "exit-status":
			if len(r.Payload) >= 4 {
				p.code, known = int(binary.BigEndian.Uint32(r.Payload)), true
			}
		case "exit-signal":
			var signal struct {
				Name string
				Rest []byte `ssh:"rest"`
			}
			if ssh.Unmarshal(r.Payload, &signal) == nil {
				p.code, known = 128+signalNumbers[signal.Name], true
			}
		}
		if r.WantReply {
			r.Reply(false, nil)
		}
	}
	switch {
	case known:
	case c.isBroken():
		p.err = &DownError{Address: c.address, Cause: errCut}
	default:
		p.err = fmt.Errorf("program at %s: it ended without an exit status: %w", c.address, host.ErrUnreachable)
	}
	close(p.done)
}

// signalNumbers are those of Linux; a shell reports them as 128+n.
var signalNumbers = map[string]int{"HUP": 1, "INT": 2, "QUIT": 3, "ILL": 4, "ABRT": 6, "FPE": 8, "KILL": 9,
	"USR1": 10, "SEGV": 11, "USR2": 12, "PIPE": 13, "ALRM": 14, "TERM": 15}

type stdin struct{ *writer }

func (s stdin) Close() error { return s.CloseWrite() }

func (s stdin) SetWriteDeadline(t time.Time) error { return s.writer.setDeadline(t) }

type stdout struct{ *reader }

func (s stdout) SetReadDeadline(t time.Time) error { return s.reader.setDeadline(t) }

func (p *program) Stdin() io.WriteCloser { return stdin{p.stdin} }
func (p *program) Stdout() io.Reader     { return stdout{p.stdout} }
func (p *program) Stderr() io.Reader     { return p.stderr }

// Wait returns when the program has ended and its output has arrived, which requires that the
// output is read. For a signal the code is 128 plus its number. After Close the error is
// net.ErrClosed.
func (p *program) Wait() (int, error) {
	select {
	case <-p.done:
	default:
		select {
		case <-p.done:
		case <-p.closed:
			return -1, net.ErrClosed
		}
	}
	return p.code, p.err
}

func (p *program) Close() error {
	err := error(net.ErrClosed)
	p.once.Do(func() {
		close(p.closed)
		err = nil
		p.stdin.deadline.set(time.Time{})
		p.stdout.deadline.set(time.Time{})
		go p.channel.Close() // see conn.Close
	})
	return err
}
