package hostcheck

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	sshhost "github.com/bowline-k8s/bowline/host/ssh"
)

// listener is a machine that can listen on its own addresses.
type listener interface {
	Expose(ctx context.Context, address string) (net.Listener, error)
	Dial(ctx context.Context, network, address string) (net.Conn, error)
}

// exposes checks whether a port of the machine reaches this process, as kubeletExposure host needs
// it.
func (e *examination) exposes(ctx context.Context) {
	m, ok := e.machine.(listener)
	if e.Expose == 0 || !ok {
		return
	}
	x := exposure{address: ":" + strconv.Itoa(e.Expose)}
	x.err = e.ask(ctx, func(ctx context.Context) error {
		facts, err := e.machine.Facts(ctx)
		if err != nil {
			return err
		}
		if len(facts.Addresses) == 0 {
			return errors.New("the host has no reachable address")
		}
		x.address = net.JoinHostPort(facts.Addresses[0].String(), strconv.Itoa(e.Expose))
		if e.Managed.NodeName != "" { // that node may listen there itself
			if c, err := m.Dial(ctx, "tcp", x.address); err == nil {
				x.managed = true
				return c.Close()
			}
		}
		return comes(ctx, m, x.address)
	})
	e.add(checkExposure(x))
}

// comes reports whether a connection to the address reaches us.
func comes(ctx context.Context, m listener, address string) error {
	l, err := m.Expose(ctx, address)
	if err != nil {
		return err
	}
	defer l.Close()
	word := []byte(rand.Text())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write(word)
			_ = c.Close()
		}
	}()
	c, err := m.Dial(ctx, "tcp", address)
	if err != nil {
		return sshhost.NotListened(address, err)
	}
	defer c.Close()
	if until, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(until.Add(-time.Second))
	}
	got := make([]byte, len(word))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != string(word) {
		return fmt.Errorf("another program of the host listens on %s", address)
	}
	return nil
}

// exposure is the result of listening.
type exposure struct {
	address string
	managed bool // the managed node listens there
	err     error
}

func checkExposure(x exposure) Line {
	var not *sshhost.NotExposedError
	switch {
	case errors.As(x.err, &not):
		return Line{Failure, Exposure, not.Text, not.Fix}
	case x.err != nil:
		return Line{Failure, Exposure, "no connection from outside to " + x.address + ": " + x.err.Error(), "read the log of sshd:\njournalctl -u ssh"}
	case x.managed:
		return ok(Exposure, "the host listens on %s, for the running node", x.address)
	}
	return ok(Exposure, "sshd listens on %s for connections from outside", x.address)
}
