package link

import (
	"context"
	"fmt"
	"net"
)

// Bulk is one particular bulk connection, for calls that must use the same one. It ends with
// that connection.
type Bulk struct {
	link *Link
	c    *connection
}

// Bulk waits for the bulk connection, as a call on it does.
func (l *Link) Bulk(ctx context.Context) (*Bulk, error) {
	c, err := l.bulk.get(ctx)
	if err != nil {
		return nil, err
	}
	return &Bulk{l, c}, nil
}

// Start starts a command line in the login shell.
func (b *Bulk) Start(ctx context.Context, command string) (Session, error) {
	return b.link.session(b.exactly(ctx), b.link.bulk, "ssh/Start", "exec", command)
}

// Listen is Link.Listen; the listener ends with this connection.
func (b *Bulk) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return b.link.listenOn(b.exactly(ctx), b.link.bulk, network, address)
}

// EndBulk ends the bulk connection, if there is one, with everything on it. A connection keeps
// the configuration that sshd had at its start; the next one uses what sshd has reloaded since.
func (l *Link) EndBulk() {
	l.bulk.mu.Lock()
	c := l.bulk.conn
	l.bulk.mu.Unlock()
	if c != nil {
		c.closeHops()
	}
}

type exactKey struct{}

// exactly makes a call use this connection or fail.
func (b *Bulk) exactly(ctx context.Context) context.Context {
	return context.WithValue(ctx, exactKey{}, b.c)
}

// replaced returns an error if the call is for another connection than c, or for one that is
// over.
func (n *keeper) replaced(ctx context.Context, c *connection) error {
	if only, ok := ctx.Value(exactKey{}).(*connection); ok && (only != c || c.isBroken()) {
		return fmt.Errorf("the connection that the call was for: %w", &DownError{Address: n.link.target.Address, Cause: errCut})
	}
	return nil
}
