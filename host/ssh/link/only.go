package link

import (
	"context"
	"fmt"

	"github.com/bowline-k8s/bowline/host"
)

type onlyKey struct{}

// Only makes a call use the control connection with that number (State.Connection) or fail. A
// call that waited for the link must not use the next connection, because the state that it relied
// on, such as a lock, may be lost. A call on the bulk connection fails unless that control connection is up. 0 allows
// any.
func Only(ctx context.Context, connection int) context.Context {
	return context.WithValue(ctx, onlyKey{}, connection)
}

// Allows returns an error if Only forbids the call of ctx to use s, a session that was started
// earlier on the control connection. The error wraps host.ErrUnreachable: nothing was sent.
func Allows(ctx context.Context, s Session) error {
	if p, ok := s.(*program); ok {
		return allows(ctx, p.connection)
	}
	return nil
}

func allows(ctx context.Context, connection int) error {
	only, _ := ctx.Value(onlyKey{}).(int)
	if only == 0 || only == connection { // no connection has number 0
		return nil
	}
	return fmt.Errorf("the connection that the call was for is over: %w", host.ErrUnreachable)
}
