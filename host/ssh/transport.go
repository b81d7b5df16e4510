package ssh

import (
	"context"
	"net"

	"github.com/bowline-k8s/bowline/host/ssh/link"
)

// Transport is what Host needs of the way to the machine; link.Link is one. Every
// error that is not an answer of the machine wraps host.ErrUnreachable.
type Transport interface {
	// Start starts a command line of the machine's login shell, with pipes to it,
	// on the control connection.
	Start(ctx context.Context, command string) (link.Session, error)
	// Subsystem starts a subsystem of sshd ("sftp") on the bulk connection.
	Subsystem(ctx context.Context, name string) (link.Session, error)
	// Dial opens a connection from the machine: "unix" (direct-streamlocal) or
	// "tcp" (direct-tcpip), on the control connection.
	Dial(ctx context.Context, network, address string) (net.Conn, error)
	// DialBulk is Dial on the bulk connection: exec, attach, port-forward, copies.
	DialBulk(ctx context.Context, network, address string) (net.Conn, error)
	// Listen listens on the machine by a reverse forward.
	Listen(ctx context.Context, network, address string) (net.Listener, error)
	Close() error
}
