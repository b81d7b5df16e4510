package ssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
)

// exposer is a Transport with a connection for what others send.
type exposer interface {
	Bulk(ctx context.Context) (*link.Bulk, error)
	EndBulk()
}

// Expose listens at a TCP address of the machine, for others to come to: by sshd, on the
// bulk connection, as what they send may be much. Who takes from us a lock that
// was taken before ends this as it ends our requests (scripts/guard.sh), whether
// this process still runs or not. The listener ends with that connection.
//
// sshd that is not told to listen for others (GatewayPorts) does on loopback, and says
// nothing: dial the address from the machine, and see NotListened.
func (h *Host) Expose(ctx context.Context, address string) (net.Listener, error) {
	return call(h, ctx, "Expose", shortDeadline, func(ctx context.Context) (net.Listener, error) {
		way, ok := h.transport.(exposer)
		if !ok {
			return nil, fmt.Errorf("listen on %s: there is no such way to the machine", address)
		}
		res, err := h.script(ctx, "listen on", address, scriptConnection, nil, nil)
		if err != nil {
			return nil, err
		}
		bulk, err := way.Bulk(ctx)
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", address, err)
		}
		guard, err := h.guard(ctx, bulk, string(res.Stdout))
		if err != nil {
			return nil, fmt.Errorf("listen on %s: %w", address, err)
		}
		l, err := bulk.Listen(ctx, "tcp", address)
		if err != nil {
			guard.Close()
			return nil, h.whyRefused(ctx, address, err)
		}
		e := &exposed{Listener: l, guard: guard}
		h.budget.Go("the guard's session", func() {
			_, _ = guard.Wait() // by its end or by Close
			e.Close()
		})
		return e, nil
	})
}

// ExposeAnew has the next Expose be judged by sshd's configuration of then.
func (h *Host) ExposeAnew() {
	if way, ok := h.transport.(exposer); ok {
		way.EndBulk()
	}
}

// guard starts what ends the connection when the lock changes hands, and waits for its
// word.
func (h *Host) guard(ctx context.Context, bulk *link.Bulk, tag string) (link.Session, error) {
	nonce := newSuffix()
	text := fmt.Sprintf("PATH=%s\nLC_ALL=C\nexport PATH LC_ALL\ntag=%s\nnonce=%s\n", shell.Quote(h.path), shell.Quote(tag), nonce) +
		shell.Connection + scriptGuard
	session, err := bulk.Start(ctx, shell.Command(h.shellPath, h.sudo, len(text)))
	if err != nil {
		return nil, err
	}
	var stderr said
	go drain(session, &stderr, h.budget, "the guard's session")
	h.budget.Go("the guard's session", func() { _, _ = session.Stdin().Write([]byte(text)) }) // its failure is the end of the answer
	word := make(chan error, 1)
	h.budget.Go("the guard's session", func() {
		err := budget.ErrPanicked
		defer func() { word <- err }()
		var w string
		if w, err = newSpoken(session.Stdout(), nonce, h.budget, "the guard's session").next(); err == nil && w != "guards" {
			err = fmt.Errorf("it says %q", w)
		}
	})
	select {
	case err := <-word:
		if err == nil {
			return session, nil
		}
		session.Close()
		var much *budget.ExceededError
		if why := strings.TrimSpace(string(stderr.bytes())); why != "" && !errors.As(err, &much) {
			err = errors.New(why)
		}
		// What it may say is that a connection has gone.
		return nil, fmt.Errorf("guard of the connection: %w: %w", err, host.ErrUnreachable)
	case <-ctx.Done():
		session.Close()
		return nil, fmt.Errorf("guard of the connection: %w: %w", ctx.Err(), host.ErrUnreachable)
	}
}

// exposed ends with its guard, and its guard with it.
type exposed struct {
	net.Listener
	guard link.Session
	once  sync.Once
	err   error
}

func (e *exposed) Close() error {
	e.once.Do(func() {
		e.err = e.Listener.Close()
		e.guard.Close()
	})
	return e.err
}

// NotExposedError says why others do not come to an address of the machine.
type NotExposedError struct {
	Reason string // PortTaken, Forbidden or LoopbackOnly
	Text   string // a sentence
	Mend   string // what to do on the machine: words and command lines, several lines
}

// Reasons of a NotExposedError.
const (
	PortTaken    = "PortTaken"    // another program listens there
	Forbidden    = "Forbidden"    // sshd does not listen there for us
	LoopbackOnly = "LoopbackOnly" // sshd listens, and not for others
)

func (e *NotExposedError) Error() string {
	return e.Text + ": " + strings.ReplaceAll(e.Mend, "\n", "; ")
}

const gatewayPorts = "in /etc/ssh/sshd_config of the machine write\nGatewayPorts clientspecified\nthen\nsystemctl reload ssh || systemctl reload sshd"

// whyRefused tells apart what sshd does not.
func (h *Host) whyRefused(ctx context.Context, address string, err error) error {
	if errors.Is(err, host.ErrUnreachable) || ctx.Err() != nil {
		return err
	}
	c, dialErr := h.transport.Dial(ctx, "tcp", address)
	if dialErr == nil {
		c.Close()
		_, port, _ := net.SplitHostPort(address)
		return &NotExposedError{PortTaken, "another program of the machine listens on " + address,
			"see which it is\nss -tlnp 'sport = :" + port + "'\nor choose another port (server.port)"}
	}
	if errors.Is(dialErr, host.ErrUnreachable) {
		return dialErr
	}
	return &NotExposedError{Forbidden, "sshd does not listen on " + address + " for us",
		"in /etc/ssh/sshd_config of the machine write\nAllowTcpForwarding yes\nGatewayPorts clientspecified\nthen\nsystemctl reload ssh || systemctl reload sshd\n" +
			"and see that the address is the machine's, and that neither PermitListen there nor permitlisten in authorized_keys leaves it out"}
}

// NotListened makes of a dial's error, to an address that is exposed, what it says of
// sshd.
func NotListened(address string, err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return &NotExposedError{LoopbackOnly, "sshd listens on loopback only, and not on " + address, gatewayPorts}
	}
	return err
}
