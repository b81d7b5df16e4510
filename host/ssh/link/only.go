package link

import (
	"context"
	"fmt"

	"github.com/bowline-k8s/bowline/host"
)

type onlyKey struct{}

// Only makes a call go by the control connection of that number (State.Connection) or
// not at all: a call that has waited for a link must not go by the next connection,
// where it has lost what it relied on. On the bulk connection it is the control
// connection of that time that counts. 0 takes any.
func Only(ctx context.Context, connection int) context.Context {
	return context.WithValue(ctx, onlyKey{}, connection)
}

// Allows tells whether Only lets the call of ctx use a session that was started before,
// on the control connection.
// The error wraps host.ErrUnreachable: nothing was sent.
func Allows(ctx context.Context, s Session) error {
	if p, ok := s.(*program); ok {
		return allows(ctx, p.connection)
	}
	return nil
}

func allows(ctx context.Context, connection int) error {
	only, _ := ctx.Value(onlyKey{}).(int)
	if only == 0 || only == connection { // no connection is 0
		return nil
	}
	return fmt.Errorf("the connection that the call was for is over: %w", host.ErrUnreachable)
}
