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

// exposer is a Transport with a bulk connection, which carries what clients send.
type exposer interface {
	Bulk(ctx context.Context) (*link.Bulk, error)
	EndBulk()
}

// Expose listens on a TCP address of the host for other clients, through sshd. It uses the bulk
// connection, because clients may send much. The listener ends with that connection. It also
// ends when another process takes the lock from us, like our requests (scripts/guard.sh),
// whether or not this process still runs.
//
// Without GatewayPorts sshd listens on loopback only, and reports no error: dial the address
// from the host, and see NotListened.
func (h *Host) Expose(ctx context.Context, address string) (net.Listener, error) {
	return call(h, ctx, "Expose", shortDeadline, func(ctx context.Context) (net.Listener, error) {
		way, ok := h.transport.(exposer)
		if !ok {
			return nil, fmt.Errorf("listen on %s: the host is not reached that way", address)
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
			_, _ = guard.Wait() // by its own end or by Close
			e.Close()
		})
		return e, nil
	})
}

// ReconnectExposure makes the next Expose connect again, so that sshd's current configuration applies.
func (h *Host) ReconnectExposure() {
	if way, ok := h.transport.(exposer); ok {
		way.EndBulk()
	}
}

// guard starts the process that ends the connection when the lock changes hands, and waits until
// it runs.
func (h *Host) guard(ctx context.Context, bulk *link.Bulk, tag string) (link.Session, error) {
	nonce := newSuffix()
	text := fmt.Sprintf("PATH=%s\nLC_ALL=C\nexport PATH LC_ALL\ntag=%s\nnonce=%s\n", shell.Quote(h.path), shell.Quote(tag), nonce) +
		shell.Connection + scriptGuard
	session, err := bulk.Start(ctx, shell.Command(h.shellPath, h.sudo, len(text)))
	if err != nil {
		return nil, err
	}
	stderr := drain(session, h.budget, "the guard's session")
	h.budget.Go("the guard's session", func() { _, _ = session.Stdin().Write([]byte(text)) }) // if it fails, the output ends
	word := make(chan error, 1)
	h.budget.Go("the guard's session", func() {
		err := budget.ErrPanicked
		defer func() { word <- err }()
		var w string
		if w, err = newReply(session.Stdout(), nonce, h.budget, "the guard's session").next(); err == nil && w != "guards" {
			err = fmt.Errorf("the guard answered %q", w)
		}
	})
	select {
	case err := <-word:
		if err == nil {
			return session, nil
		}
		var much *budget.ExceededError
		if !errors.As(err, &much) {
			if why := strings.TrimSpace(string(stderr.text(ctx))); why != "" {
				err = errors.New(why)
			}
		}
		session.Close()
		// The script may say that the connection is over.
		return nil, fmt.Errorf("guard of the connection: %w: %w", err, host.ErrUnreachable)
	case <-ctx.Done():
		session.Close()
		return nil, fmt.Errorf("guard of the connection: %w: %w", ctx.Err(), host.ErrUnreachable)
	}
}

// exposed ends with its guard, and the guard with it.
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

// NotExposedError reports why clients do not reach an address of the host.
type NotExposedError struct {
	Reason string // PortTaken, Forbidden or LoopbackOnly
	Text   string // a sentence
	Fix    string // what to do on the host: text and command lines, several lines
}

// Reasons of a NotExposedError.
const (
	PortTaken    = "PortTaken"    // another program listens there
	Forbidden    = "Forbidden"    // sshd does not listen there for us
	LoopbackOnly = "LoopbackOnly" // sshd listens, but not for other hosts
)

func (e *NotExposedError) Error() string { return e.Text }

// Hint returns the fix.
func (e *NotExposedError) Hint() string { return e.Fix }

const gatewayPorts = "set in /etc/ssh/sshd_config of the host:\nGatewayPorts clientspecified\nthen run:\nsystemctl reload ssh || systemctl reload sshd"

// whyRefused distinguishes reasons that sshd does not report.
func (h *Host) whyRefused(ctx context.Context, address string, err error) error {
	if errors.Is(err, host.ErrUnreachable) || ctx.Err() != nil {
		return err
	}
	c, dialErr := h.transport.Dial(ctx, "tcp", address)
	if dialErr == nil {
		c.Close()
		_, port, _ := net.SplitHostPort(address)
		return &NotExposedError{PortTaken, "another program of the host listens on " + address,
			"find it:\nss -tlnp 'sport = :" + port + "'\nor choose another port (server.port)"}
	}
	if errors.Is(dialErr, host.ErrUnreachable) {
		return dialErr
	}
	return &NotExposedError{Forbidden, "sshd does not listen on " + address + " for us",
		"set in /etc/ssh/sshd_config of the host:\nAllowTcpForwarding yes\nGatewayPorts clientspecified\nthen run:\nsystemctl reload ssh || systemctl reload sshd\n" +
			"and check that the address belongs to the host, and that PermitListen there and permitlisten in authorized_keys allow it"}
}

// NotListened converts the error of a dial to an exposed address into a statement about sshd.
func NotListened(address string, err error) error {
	if errors.Is(err, syscall.ECONNREFUSED) {
		return &NotExposedError{LoopbackOnly, "sshd listens on loopback only, and not on " + address, gatewayPorts}
	}
	return err
}
