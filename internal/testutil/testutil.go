// Package testutil has what tests of many packages need.
package testutil

import (
	"context"
	"net"
	"os"
	"testing"
	"time"
)

// patience is how long Eventually waits: long enough for a loaded machine.
const patience = time.Minute

// Must fails the test, a *testing.T or *rapid.T, if err is not nil.
func Must(t interface {
	Helper()
	Fatal(args ...any)
}, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ReadFile returns the content of a file that must be there.
func ReadFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	Must(t, err)
	return data
}

// Eventually waits until a condition holds, and fails the test if it does not within a minute. what
// names the condition.
func Eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	Within(t, patience, what, condition)
}

// Within is Eventually with another limit.
func Within(t testing.TB, limit time.Duration, what string, condition func() bool) {
	t.Helper()
	deadline, tick := time.After(limit), time.NewTicker(5*time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("not within %s: %s", limit, what)
		case <-tick.C:
		}
	}
}

// Receive waits for a value, or for the end, of a channel. After limit it fails the test with what
// is missing.
func Receive[T any](t testing.TB, from <-chan T, limit time.Duration, missing string) {
	t.Helper()
	select {
	case <-from:
	case <-time.After(limit):
		t.Fatal(missing)
	}
}

// Go runs f in a goroutine of its own. stop ends f's context and returns its error.
func Go(ctx context.Context, f func(context.Context) error) (stop func() error) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	return func() error {
		cancel()
		return <-done
	}
}

// Serve passes each connection of l to f, in a goroutine of its own, and closes it when f returns.
// l is closed with the end of the test.
func Serve(t testing.TB, l net.Listener, f func(net.Conn)) {
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c)
			}()
		}
	}()
}
