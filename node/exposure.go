package node

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
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/relisten"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/provider"
)

// kubeletExposed is Bowline's condition on a node whose host listens for the node's API.
const kubeletExposed v1.NodeConditionType = v1alpha1.ConditionKubeletExposed

// exposure serves the node's API at an address of a remote host (kubeletExposure: host). It is nil
// for a node without that.
type exposure struct {
	listener *relisten.Listener
	last     atomic.Pointer[provider.Condition] // the last condition set; nil before the first
}

// newExposure creates the listener, which listens once it runs. certificate returns the node's
// serving certificate: if a connection to the address shows it, the connection reached this
// process.
func newExposure(ctx context.Context, n *Node, port int, certificate getCertificate) (*exposure, error) {
	e := &exposure{}
	var err error
	first := &net.TCPAddr{IP: net.ParseIP(n.seen.load().ips[0]), Port: port}
	address := func() string { return net.JoinHostPort(n.seen.load().ips[0], strconv.Itoa(port)) }
	e.listener, err = relisten.New(relisten.Config{
		Address: first, Budget: budget.From(ctx),
		Listen: func(ctx context.Context) (net.Listener, error) {
			return n.host.Expose.Expose(ctx, address())
		},
		Check:     func(ctx context.Context) error { return answers(ctx, n.host, address(), certificate) },
		Reconnect: n.host.Expose.ReconnectExposure,
		OnResult: func(err error) {
			c := exposedCondition(address(), err)
			if before := e.last.Swap(&c); before != nil && *before == c {
				return
			}
			n.node.SetCondition(c)
			klog.Background().WithValues("node", n.name).Info("Changed the condition KubeletExposed", "status", c.Status, "reason", c.Reason, "message", c.Message)
		},
	})
	return e, err
}

// retry listens again at once, because the host's lock is held again.
func (e *exposure) retry() {
	if e != nil {
		e.listener.Retry()
	}
}

// drop closes the listener, because another process may manage the host now.
func (e *exposure) drop() {
	if e != nil {
		e.listener.Drop()
	}
}

func (e *exposure) report() *hosts.Exposed {
	if e == nil {
		return nil
	}
	c := e.last.Load()
	if c == nil {
		return nil
	}
	return &hosts.Exposed{Status: metav1.ConditionStatus(c.Status), Reason: c.Reason, Message: c.Message}
}

const portTakenFix = "choose another port (server.port), or have that program listen elsewhere"

// answers dials the address from the host itself and checks that the connection reaches this
// process: that the peer shows this node's certificate.
func answers(ctx context.Context, machine host.Host, address string, certificate getCertificate) error {
	raw, err := machine.Dial(ctx, "tcp", address)
	if errors.Is(err, host.ErrUnreachable) {
		return err
	}
	if err != nil {
		if err := ssh.NotListened(address, err); errors.As(err, new(*ssh.NotExposedError)) {
			return err
		}
		return fmt.Errorf("%w: %w", relisten.ErrUnknown, err)
	}
	defer raw.Close()
	// The comparison below identifies the peer; no CA vouches for it.
	c := tls.Client(raw, &tls.Config{InsecureSkipVerify: true})
	err = c.HandshakeContext(ctx)
	switch {
	case err != nil && ctx.Err() != nil:
		return fmt.Errorf("no answer on %s in time: %w", address, ctx.Err())
	case errors.Is(err, host.ErrUnreachable):
		return err
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrClosedPipe), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.ECONNRESET):
		// This node's own server ends connections so, too, when it stops.
		return fmt.Errorf("%w: the process that listens on %s sent nothing: %w", relisten.ErrUnknown, address, err)
	case err != nil:
		return &ssh.NotExposedError{Reason: ssh.PortTaken, Text: "the program that listens on " + address + " of the host is not this node: " + err.Error(), Fix: portTakenFix}
	}
	own, err := certificate(&tls.ClientHelloInfo{})
	if err != nil {
		return fmt.Errorf("%w: %w", relisten.ErrUnknown, err)
	}
	if shown := c.ConnectionState().PeerCertificates; len(shown) == 0 || !bytes.Equal(shown[0].Raw, own.Certificate[0]) {
		return &ssh.NotExposedError{Reason: ssh.PortTaken, Text: "another program of the host listens on " + address, Fix: portTakenFix}
	}
	return nil
}

// exposedCondition returns the condition for the result of a try, and what does not work meanwhile.
func exposedCondition(address string, err error) provider.Condition {
	c := provider.Condition{Type: kubeletExposed, Status: v1.ConditionFalse}
	var not *ssh.NotExposedError
	switch {
	case err == nil:
		c.Status, c.Reason, c.Message = v1.ConditionTrue, "Listening", "the host listens on "+address+" for the node"
	case errors.As(err, &not):
		c.Reason, err = not.Reason, not
	case errors.Is(err, relisten.ErrUnknown):
		c.Status, c.Reason, c.Message = v1.ConditionUnknown, "NotLooked", "the host listens; "+err.Error()
	case errors.Is(err, host.ErrUnreachable):
		// Same message for the whole outage, so that the condition does not change.
		c.Reason, err = "Unreachable", errors.New("the link is down")
	default:
		c.Reason = "NotListening"
	}
	if c.Status == v1.ConditionFalse {
		c.Message = hint.Text(fmt.Errorf("%w (pods keep running; kubectl logs, exec and port-forward do not work)", err))
	}
	return c
}

// resetExposed resets the KubeletExposed condition that an earlier run with kubeletExposure host left
// on the Node.
func (n *Node) resetExposed(seen *v1.Node) {
	if n.exposed != nil {
		return
	}
	for _, c := range seen.Status.Conditions {
		if c.Type == kubeletExposed {
			n.node.SetCondition(provider.Condition{Type: kubeletExposed, Status: v1.ConditionTrue, Reason: "ByProcess", Message: "the node is found at Bowline's own address"})
		}
	}
}
