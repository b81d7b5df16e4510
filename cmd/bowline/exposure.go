package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"syscall"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/standing"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/provider"
)

// kubeletExposed is our condition of a node whose machine listens for it.
const kubeletExposed v1.NodeConditionType = v1alpha1.ConditionKubeletExposed

// exposure is the node's API at an address of a far machine (kubeletExposure host). A nil
// one is of a node that has none.
type exposure struct {
	listener *standing.Listener
	said     atomic.Pointer[provider.Condition] // the last word on it; nil before the first
}

// newExposure makes the listener; it listens when it runs. certificate is by which we know
// that it is us who answer there.
func newExposure(ctx context.Context, n *node, port int, certificate getCertificate) (*exposure, error) {
	e := &exposure{}
	var err error
	first := &net.TCPAddr{IP: net.ParseIP(n.seen.load().ips[0]), Port: port}
	address := func() string { return net.JoinHostPort(n.seen.load().ips[0], strconv.Itoa(port)) }
	e.listener, err = standing.New(standing.Config{
		Address: first, Budget: budget.From(ctx),
		Listen: func(ctx context.Context) (net.Listener, error) {
			return n.host.expose.Expose(ctx, address())
		},
		Look: func(ctx context.Context) error { return answers(ctx, n.host, address(), certificate) },
		Anew: n.host.expose.ExposeAnew,
		Tell: func(err error) {
			c := exposedCondition(address(), err)
			if before := e.said.Swap(&c); before != nil && *before == c {
				return
			}
			n.node.SetCondition(c)
			klog.Background().WithValues("node", n.name).Info("The node's API at the machine's address", "exposed", c.Status, "reason", c.Reason, "message", c.Message)
		},
	})
	return e, err
}

// poke has it tried at once, as the machine is held again.
func (e *exposure) poke() {
	if e != nil {
		e.listener.Poke()
	}
}

// drop ends it, as the machine may be another's to drive.
func (e *exposure) drop() {
	if e != nil {
		e.listener.Drop()
	}
}

func (e *exposure) report() *hosts.Exposed {
	if e == nil {
		return nil
	}
	c := e.said.Load()
	if c == nil {
		return nil
	}
	return &hosts.Exposed{Status: metav1.ConditionStatus(c.Status), Reason: c.Reason, Message: c.Message}
}

// answers dials the machine's address from the machine, and finds out whether it comes
// to us: whether who answers there shows our certificate.
func answers(ctx context.Context, machine host.Host, address string, certificate getCertificate) error {
	raw, err := machine.Dial(ctx, "tcp", address)
	if errors.Is(err, host.ErrUnreachable) {
		return err
	}
	if err != nil {
		if err := ssh.NotListened(address, err); errors.As(err, new(*ssh.NotExposedError)) {
			return err
		}
		return fmt.Errorf("%w: %w", standing.ErrUnknown, err)
	}
	defer raw.Close()
	// Who it is, is told by the certificate itself: nobody vouches for it.
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true})
	err = c.HandshakeContext(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("nobody answers on %s in time: %w", address, ctx.Err())
	case errors.Is(err, host.ErrUnreachable):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET):
		// Ours does so as well, when it ends.
		return fmt.Errorf("%w: who answers on %s said nothing: %w", standing.ErrUnknown, address, err)
	case err != nil:
		return &ssh.NotExposedError{Reason: ssh.PortTaken, Text: "what answers on " + address + " of the machine is not this node", Mend: err.Error()}
	}
	own, err := certificate(&tls.ClientHelloInfo{})
	if err != nil {
		return fmt.Errorf("%w: %w", standing.ErrUnknown, err)
	}
	if shown := c.ConnectionState().PeerCertificates; len(shown) == 0 || !bytes.Equal(shown[0].Raw, own.Certificate[0]) {
		return &ssh.NotExposedError{Reason: ssh.PortTaken, Text: "another program of the machine answers on " + address, Mend: "choose another port (server.port), or have that one listen elsewhere"}
	}
	return nil
}

// exposedCondition says what came of a try, and what does not work without.
func exposedCondition(address string, err error) provider.Condition {
	c := provider.Condition{Type: kubeletExposed, Status: v1.ConditionFalse}
	var not *ssh.NotExposedError
	switch {
	case err == nil:
		c.Status, c.Reason, c.Message = v1.ConditionTrue, "Listening", "the machine listens on "+address+" for the node"
	case errors.As(err, &not):
		c.Reason, c.Message = not.Reason, not.Error()
	case errors.Is(err, standing.ErrUnknown):
		c.Status, c.Reason, c.Message = v1.ConditionUnknown, "NotLooked", "the machine listens, and "+err.Error()
	case errors.Is(err, host.ErrUnreachable):
		// The same words as long as it lasts.
		c.Reason, c.Message = "Unreachable", "the machine does not listen on "+address+" before it is reached, and held, again"
	default:
		c.Reason, c.Message = "NotListening", err.Error()
	}
	if c.Status == v1.ConditionFalse {
		c.Message += " (pods run on; kubectl logs, exec and port-forward do not reach them meanwhile)"
	}
	return c
}

// takeBack puts right what a node that was exposed by its machine before says of that.
func (n *node) takeBack(seen *v1.Node) {
	if n.exposed != nil {
		return
	}
	for _, c := range seen.Status.Conditions {
		if c.Type == kubeletExposed {
			n.node.SetCondition(provider.Condition{Type: kubeletExposed, Status: v1.ConditionTrue, Reason: "ByProcess", Message: "the node is found at Bowline's own address"})
		}
	}
}
