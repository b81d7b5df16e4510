package link

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host"
)

var errCut = errors.New("the connection was cut")

// Start starts a command line in the login shell, on the control connection.
func (l *Link) Start(ctx context.Context, command string) (Session, error) {
	return l.session(ctx, l.control, "ssh/Start", "exec", command)
}

// StartBulk is Start on the bulk connection.
func (l *Link) StartBulk(ctx context.Context, command string) (Session, error) {
	return l.session(ctx, l.bulk, "ssh/Start", "exec", command)
}

// Subsystem starts a subsystem of sshd ("sftp"), on the bulk connection.
func (l *Link) Subsystem(ctx context.Context, name string) (Session, error) {
	return l.session(ctx, l.bulk, "ssh/Subsystem", "subsystem", name)
}

// Dial opens a connection from the host, on the control connection: network "unix" or "tcp". The
// connection supports deadlines, and half-close with CloseWrite. If sshd reports the reason of a
// refusal, errors.Is finds syscall.ECONNREFUSED and the like; for unix sockets it never does.
func (l *Link) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return l.dialOn(ctx, l.control, network, address)
}

// DialBulk is Dial on the bulk connection.
func (l *Link) DialBulk(ctx context.Context, network, address string) (net.Conn, error) {
	return l.dialOn(ctx, l.bulk, network, address)
}

func (l *Link) dialOn(ctx context.Context, n *keeper, network, address string) (net.Conn, error) {
	if err := checkAddress(network, address); err != nil {
		return nil, fmt.Errorf("dial: %w", err)
	}
	object := fmt.Sprintf("dial %s %s at %s", network, address, l.target.Address)
	return call(ctx, n, "ssh/Dial", network, object, func(ctx context.Context, c *connection) (net.Conn, error) {
		raw, err := waitFor(ctx, c.budget, func() (*channelConn, error) { return c.dial(network, address) }, drop[*channelConn])
		if err != nil {
			return nil, err
		}
		return newConn(raw, c.readEnded, c.writeEnded), nil
	})
}

// Listen listens on the host with a reverse forward: network "unix" or "tcp". The listener ends
// with the control connection: then Accept returns an error that wraps host.ErrUnreachable.
// After Close it returns net.ErrClosed.
func (l *Link) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return l.listenOn(ctx, l.control, network, address)
}

func (l *Link) listenOn(ctx context.Context, n *keeper, network, address string) (net.Listener, error) {
	if err := checkAddress(network, address); err != nil {
		return nil, fmt.Errorf("listen: %w", err)
	}
	object := fmt.Sprintf("listen on %s %s at %s", network, address, l.target.Address)
	return call(ctx, n, "ssh/Listen", network, object, func(ctx context.Context, c *connection) (net.Listener, error) {
		return c.listen(ctx, network, address)
	})
}

func drop[T io.Closer](c T) { c.Close() }

// call gets the connection and makes a call on it, under the hook, with a deadline if ctx has
// none. Its errors name the call, and say whether the host answered.
func call[T io.Closer](ctx context.Context, n *keeper, label, what, object string, do func(context.Context, *connection) (T, error)) (T, error) {
	var value, none T
	made := false
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, n.link.limits.call)
		defer cancel()
	}
	err := n.link.hook.Do(ctx, label, func(ctx context.Context) error {
		c, err := n.get(ctx)
		if err != nil {
			return fmt.Errorf("%s: %w", object, err)
		}
		v, err := do(ctx, c)
		if err == nil {
			value, made = v, true
			return nil
		}
		return c.explain(ctx, what, object, err)
	})
	if err == nil && !made {
		err = fmt.Errorf("%s: no call was made: %w", object, host.ErrUnreachable)
	}
	if err != nil {
		if made { // the error is the hook's
			value.Close()
		}
		return none, err
	}
	return value, nil
}

// explain distinguishes answers of the host from failures of the link.
func (c *connection) explain(ctx context.Context, what, object string, err error) error {
	var refused *ssh.OpenChannelError
	var answer *answerError
	switch {
	case errors.As(err, &refused):
		return refusal(what, object, refused)
	case errors.As(err, &answer):
		return fmt.Errorf("%s: %w", object, answer)
	case ctx.Err() != nil:
		return fmt.Errorf("%s: %w", object, &UnansweredError{c.address, c.top.silence(), context.Cause(ctx)})
	}
	// The rest is the end of the connection, which has several error texts.
	return fmt.Errorf("%s: %w", object, &DownError{Address: c.address, Cause: errCut})
}

func (c *connection) isBroken() bool { return c.top.broken.Load() || closedNow(c.ended) }

// readEnded converts the error of a read, because the end of the link is not the end of the
// stream. The socket has failed by then, except if sshd sent a DISCONNECT message, which may
// precede that.
func (c *connection) readEnded(err error) error {
	if c.isBroken() {
		return &DownError{Address: c.address, Cause: errCut}
	}
	return err
}

// writeEnded converts the error of a write: x/crypto/ssh returns EOF if the other side has
// closed the channel.
func (c *connection) writeEnded(err error) error {
	if c.isBroken() {
		return &DownError{Address: c.address, Cause: errCut}
	}
	if errors.Is(err, io.EOF) {
		return syscall.EPIPE
	}
	return err
}

func checkAddress(network, address string) error {
	switch network {
	case "unix":
		if len(address) == 0 || address[0] != '/' {
			return fmt.Errorf("unix address %q is not an absolute path", address)
		}
	case "tcp":
		_, port, err := net.SplitHostPort(address)
		if err == nil {
			_, err = strconv.ParseUint(port, 10, 16)
		}
		if err != nil {
			return fmt.Errorf("tcp address %q is not host:port with a number: %w", address, err)
		}
	default:
		return fmt.Errorf("network %q is neither unix nor tcp", network)
	}
	return nil
}
