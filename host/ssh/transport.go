package ssh

import (
	"context"
	"net"

	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// Transport is the connection to the host as Host uses it; link.Link implements it. Every error
// that is not an answer of the host wraps host.ErrUnreachable.
type Transport interface {
	// Start runs a command line in the login shell of the host, with pipes, on the control
	// connection.
	Start(ctx context.Context, command string) (link.Session, error)
	// StartBulk is Start on the bulk connection: programs that print much.
	StartBulk(ctx context.Context, command string) (link.Session, error)
	// Subsystem starts a subsystem of sshd ("sftp") on the bulk connection.
	Subsystem(ctx context.Context, name string) (link.Session, error)
	// Dial opens a connection from the host, "unix" (direct-streamlocal) or "tcp"
	// (direct-tcpip), on the control connection.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// DialBulk is Dial on the bulk connection: exec, attach, port-forward, copies.
	DialBulk(ctx context.Context, network, address string) (net.Conn, error)
	// Listen listens on the host with a reverse forward.
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	Close() error
}
