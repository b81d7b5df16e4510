package link

import (
	"context"
	"fmt"
	"net"
)

// Bulk is one bulk connection, for what has to go by one and the same: it ends with it.
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

// Start starts a command line of the login shell.
func (b *Bulk) Start(ctx context.Context, command string) (Session, error) {
	return b.link.session(b.exactly(ctx), b.link.bulk, "ssh/Start", "exec", command)
}

// Listen is Link.Listen; the listener ends with this connection.
func (b *Bulk) Listen(ctx context.Context, network, address string) (net.Listener, error) {
	return b.link.listenOn(b.exactly(ctx), b.link.bulk, network, address)
}

// EndBulk ends the bulk connection, where there is one, with all that goes by it. A
// connection keeps the configuration that sshd had at its beginning: the next one is by
// what sshd has been told to reload since.
func (l *Link) EndBulk() {
	l.bulk.mu.Lock()
	c := l.bulk.conn
	l.bulk.mu.Unlock()
	if c != nil {
		c.closeHops()
	}
}

type exactKey struct{}

// exactly makes a call go by this connection or not at all.
func (b *Bulk) exactly(ctx context.Context) context.Context {
	return context.WithValue(ctx, exactKey{}, b.c)
}

// replaced says that a call is for another connection than c, or for one that is over.
func (n *lane) replaced(ctx context.Context, c *connection) error {
	if only, ok := ctx.Value(exactKey{}).(*connection); ok && (only != c || c.isBroken()) {
		return fmt.Errorf("the connection that the call was for: %w", &DownError{Address: n.link.target.Address, Cause: errCut})
	}
	return nil
}
