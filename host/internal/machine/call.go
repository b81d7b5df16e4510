package machine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bowline-k8s/bowline/host"
)

// Call runs f under the hook, with the deadline if ctx has none. If the hook turns a success into
// an error, Call closes the result, which no caller would close.
func Call[T any](ctx context.Context, hook host.Hook, label string, deadline time.Duration, f func(context.Context) (T, error)) (T, error) {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, deadline)
		defer cancel()
	}
	var out, none T
	opened := false
	err := hook.Do(ctx, "host/"+label, func(ctx context.Context) (err error) {
		out, err = f(ctx)
		opened = err == nil
		return err
	})
	if c, ok := any(out).(interface{ Close() error }); err != nil && opened && ok {
		c.Close()
		return none, err
	}
	return out, err
}

// Run checks a command and has f run it under the hook, with the command's timeout.
func Run(ctx context.Context, hook host.Hook, c host.Command, f func(context.Context, host.Command) (host.Result, error)) (host.Result, error) {
	if len(c.Args) == 0 {
		return host.Result{}, errors.New("run: no command")
	}
	if c.Timeout <= 0 {
		return host.Result{}, fmt.Errorf("run %s: no timeout", c.Args[0])
	}
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	var out host.Result
	err := hook.Do(ctx, "host/Run", func(ctx context.Context) (err error) {
		out, err = f(ctx, c)
		return err
	})
	if err != nil {
		return host.Result{}, err
	}
	return out, nil
}
