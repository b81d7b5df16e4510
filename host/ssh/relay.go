package ssh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// relay is a program on the host that connects its standard input and output to a unix socket.
// sshd opens sockets as the login user, so sudo has no effect there; a program that runs with
// sudo may open them.
type relay struct {
	name string
	// script runs the relay: $1 is the socket, $2 a line to print before the first byte from the
	// socket.
	script string
}

// relays, in the order in which Bowline tries them. The first two report why a socket cannot be
// opened, and print the greeting only once it is open.
var relays = []relay{
	{"python3", "exec python3 -c " + shell.Quote(scriptRelayPython) + ` "$@"`},
	{"perl", "exec perl -e " + shell.Quote(scriptRelayPerl) + ` "$@"`},
	{"socat", greet + `exec socat -t 86400 - "UNIX-CONNECT:$1"`},
	{"nc", greet + `exec nc -N -U "$1"`},
	{"ncat", greet + `exec ncat -U "$1"`},
	{"busybox", greet + `exec busybox nc "local:$1" 0`},
}

const greet = `printf '%s\n' "$2"; `

const scriptRelayPython = `
import os, socket, sys, threading
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
except OSError as e:
    sys.exit(e.strerror)
def write(b):
    while b:
        b = b[os.write(1, b):]
def up():
    try:
        while True:
            b = os.read(0, 65536)
            if not b:
                break
            s.sendall(b)
        s.shutdown(socket.SHUT_WR)
    except OSError:
        pass
try:
    write((sys.argv[2] + "\n").encode())
    threading.Thread(target=up, daemon=True).start()
    while True:
        b = s.recv(65536)
        if not b:
            break
        write(b)
except OSError:
    pass
os._exit(0)
`

const scriptRelayPerl = `
use strict; use Socket;
$SIG{PIPE} = "IGNORE";
my $s;
socket($s, PF_UNIX, SOCK_STREAM, 0) && connect($s, sockaddr_un($ARGV[0])) or do { print STDERR "$!\n"; exit 1 };
sub copy {
	my ($from, $to) = @_;
	while (sysread($from, my $b, 65536)) {
		my $at = 0;
		while ($at < length $b) {
			my $n = syswrite($to, $b, length($b) - $at, $at);
			return unless defined $n;
			$at += $n;
		}
	}
}
syswrite(STDOUT, "$ARGV[1]\n");
my $pid = fork;
exit 1 unless defined $pid;
if (!$pid) {
	copy(*STDIN, $s);
	shutdown($s, 1);
	exit 0;
}
copy($s, *STDOUT);
kill "KILL", $pid;
`

// relayed opens a connection to a unix socket through a relay, with or without sudo.
func relayed(ctx context.Context, t Transport, r relay, sudo bool, socket string, a *budget.Account) (net.Conn, error) {
	nonce := newSuffix()
	command := "/bin/sh -c " + shell.Quote("PATH="+shell.Quote(shell.DefaultPath)+"; "+r.script) + " sh " + shell.Quote(socket) + " " + nonce
	if sudo {
		command = "sudo -n " + command
	}
	s, err := t.Start(ctx, "exec "+command)
	if err != nil {
		return nil, fmt.Errorf("dial unix %s by %s: %w", socket, r.name, err)
	}
	stderr := drain(s, a, "the relay "+r.name)
	out := newReply(s.Stdout(), nonce, a, "the relay "+r.name)
	greeted := make(chan error, 1)
	a.Go("the relay "+r.name, func() {
		err := budget.ErrPanicked
		defer func() { greeted <- err }()
		err = out.greeting()
	})
	select {
	case err = <-greeted:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		// What arrived together with the greeting.
		rest, _ := out.r.Peek(out.r.Buffered())
		return &relayConn{session: s, rest: rest, address: &net.UnixAddr{Name: socket, Net: "unix"}}, nil
	}
	var much *budget.ExceededError
	code, why := -1, []byte(nil)
	if ctx.Err() == nil && !errors.As(err, &much) {
		code, why = waitCode(ctx, s, a), stderr.text(ctx)
	}
	s.Close()
	switch {
	case much != nil:
		return nil, fmt.Errorf("dial unix %s by %s: %w", socket, r.name, much)
	case ctx.Err() != nil:
		return nil, fmt.Errorf("dial unix %s by %s: %w: %w", socket, r.name, host.ErrUnreachable, ctx.Err())
	case code < 0:
		return nil, fmt.Errorf("dial unix %s by %s: the session ended: %w", socket, r.name, host.ErrUnreachable)
	}
	return nil, failure("dial unix by "+r.name, socket, shell.Result{Stderr: why, Code: code})
}

// greeting reads up to the line that ends with the nonce. Output of a login shell may precede
// it.
func (w *reply) greeting() error {
	for {
		line, err := w.line()
		if err != nil || strings.HasSuffix(line, w.nonce) {
			return err
		}
	}
}

// relayConn is a connection through a relay.
type relayConn struct {
	session link.Session
	address net.Addr

	mu   sync.Mutex
	rest []byte // read with the greeting, to be returned first
}

func (c *relayConn) Read(p []byte) (int, error) {
	c.mu.Lock()
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	c.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	return c.session.Stdout().Read(p)
}

func (c *relayConn) Write(p []byte) (int, error) { return c.session.Stdin().Write(p) }

// CloseWrite ends the write direction; reads continue.
func (c *relayConn) CloseWrite() error    { return c.session.Stdin().Close() }
func (c *relayConn) Close() error         { return c.session.Close() }
func (c *relayConn) LocalAddr() net.Addr  { return c.address }
func (c *relayConn) RemoteAddr() net.Addr { return c.address }

func (c *relayConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

func (c *relayConn) SetReadDeadline(t time.Time) error {
	if d, ok := c.session.Stdout().(interface{ SetReadDeadline(time.Time) error }); ok {
		return d.SetReadDeadline(t)
	}
	return errors.ErrUnsupported
}

func (c *relayConn) SetWriteDeadline(t time.Time) error {
	if d, ok := c.session.Stdin().(interface{ SetWriteDeadline(time.Time) error }); ok {
		return d.SetWriteDeadline(t)
	}
	return errors.ErrUnsupported
}

// relayTry bounds one try of a relay.
const relayTry = 20 * time.Second

// findRelay returns the first relay that transfers requests and answers of a CRI socket, and
// that ends when it should.
func findRelay(ctx context.Context, t Transport, socket string) (string, error) {
	var tried []error
	for _, r := range relays {
		err := tryRelay(ctx, t, r, true, socket)
		if err == nil {
			return r.name, nil
		}
		if errors.Is(err, host.ErrUnreachable) && ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			return "", err // the link failed, not the relay
		}
		tried = append(tried, err)
	}
	return "", errors.Join(tried...)
}

// tryRelay begins an HTTP/2 connection, as gRPC does, and ends it.
func tryRelay(ctx context.Context, t Transport, r relay, sudo bool, socket string) error {
	ctx, cancel := context.WithTimeout(ctx, relayTry)
	defer cancel()
	c, err := relayed(ctx, t, r, sudo, socket, budget.From(ctx))
	if err != nil {
		return err
	}
	defer c.Close()
	until, _ := ctx.Deadline()
	if err := c.SetDeadline(until); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	// The connection preface and an empty SETTINGS frame: RFC 9113, 3.4.
	if _, err := io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	var frame [9]byte
	if _, err := io.ReadFull(c, frame[:]); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	if frame[3] != 4 {
		return fmt.Errorf("%s: what listens at %s answered with %q, which is no HTTP/2", r.name, socket, frame)
	}
	if err := c.(*relayConn).CloseWrite(); err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	if _, err := io.Copy(io.Discard, c); err != nil {
		return fmt.Errorf("%s does not end: %w", r.name, err)
	}
	return nil
}

// relayShells is the number of shells of a host with a relay. Each connection through the relay needs
// one of the sessions that shell.MaxShells leaves.
const relayShells = 4

// relayOf finds a relay by its name.
func relayOf(name string) (relay, bool) {
	for _, r := range relays {
		if r.name == name {
			return r, true
		}
	}
	return relay{}, false
}
