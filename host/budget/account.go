package budget

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
)

// Account counts what the host of one driver has used. Its methods are safe for concurrent use.
// A nil account has the default limits and counts nothing; Check and Exceed still return errors.
type Account struct {
	limits   Limits
	exceeded chan struct{} // closed with first

	mu    sync.Mutex
	use   [kinds]Use
	first *ExceededError
	stack []byte
}

// Use is the use of one budget.
type Use struct {
	Kind      Kind
	Limit     int64
	Now       int64 // held now, or the last size that was counted
	HighWater int64 // the highest Now
	Exceeded  int64 // how often the limit was exceeded
}

// New makes the account for one run of a host's driver.
func New(l Limits) *Account {
	a := &Account{limits: l, exceeded: make(chan struct{})}
	for _, k := range Kinds() {
		a.use[k] = Use{Kind: k, Limit: l.Of(k)}
	}
	return a
}

// Limit is the limit of a budget, for readers that stop when they reach it.
func (a *Account) Limit(k Kind) int64 {
	if a == nil {
		return defaults.Of(k)
	}
	return a.limits.Of(k)
}

// Check counts one thing of size n against a budget. An error is an *ExceededError and ends the
// driver.
func (a *Account) Check(k Kind, n int64, what string) error {
	if a != nil {
		a.mu.Lock()
		a.note(k, n)
		a.mu.Unlock()
	}
	if n > a.Limit(k) {
		return a.Exceed(k, what)
	}
	return nil
}

// Take holds n of a budget until release is called; release may be called more than once and is
// never nil. On an error Take holds nothing, and the driver ends. A nil account holds nothing.
func (a *Account) Take(k Kind, n int64, what string) (release func(), err error) {
	if release, err = a.TryTake(k, n, what); err != nil {
		a.trip(err.(*ExceededError), nil)
	}
	return release, err
}

// TryTake is Take for costs that the host may not have caused: beyond the limit it returns the
// error and the driver continues.
func (a *Account) TryTake(k Kind, n int64, what string) (release func(), err error) {
	if a == nil {
		return func() {}, nil
	}
	a.mu.Lock()
	held := a.use[k].Now
	if held+n <= a.limits.Of(k) {
		a.note(k, held+n)
		a.mu.Unlock()
		return sync.OnceFunc(func() {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.use[k].Now -= n
		}), nil
	}
	a.mu.Unlock()
	return func() {}, &ExceededError{Kind: k, Limit: a.Limit(k), What: what}
}

// Exceed is for a reader that stopped at a limit because there was more to read.
func (a *Account) Exceed(k Kind, what string) error {
	e := &ExceededError{Kind: k, Limit: a.Limit(k), What: what}
	a.trip(e, nil)
	return e
}

// ErrPanicked is the result for those who wait for a goroutine under Recover. The goroutine sets
// it before its work and replaces it with the real result.
var ErrPanicked = errors.New("the code that reads what the host says panicked")

// Recover is deferred at the top of a goroutine that reads output of the host: a panic then ends
// the driver and not the process. A nil account does not recover.
func (a *Account) Recover(what string) {
	if a == nil {
		return
	}
	if r := recover(); r != nil {
		a.trip(&ExceededError{Kind: Panic, What: fmt.Sprintf("%s panicked: %v", what, r)}, debug.Stack())
	}
}

// Go runs f in a goroutine of its own, under Recover.
func (a *Account) Go(what string, f func()) {
	go func() {
		defer a.Recover(what)
		f()
	}()
}

// Exceeded is closed when the first budget is exceeded. It is nil for a nil account.
func (a *Account) Exceeded() <-chan struct{} {
	if a == nil {
		return nil
	}
	return a.exceeded
}

// Err is the first *ExceededError, or nil.
func (a *Account) Err() error {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.first == nil {
		return nil
	}
	return a.first
}

// Stack is the stack of the panic that Err reports; nil if Err reports no panic.
func (a *Account) Stack() []byte {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.stack
}

// Uses returns the use of each budget, in the order of Kinds.
func (a *Account) Uses() []Use {
	if a == nil {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]Use(nil), a.use[:]...)
}

func (a *Account) note(k Kind, n int64) {
	a.use[k].Now = n
	a.use[k].HighWater = max(a.use[k].HighWater, n)
}

func (a *Account) trip(e *ExceededError, stack []byte) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.use[e.Kind].Exceeded++
	if a.first == nil {
		a.first, a.stack = e, stack
		close(a.exceeded)
	}
}

type contextKey struct{}

// With attaches the account to ctx.
func With(ctx context.Context, a *Account) context.Context {
	return context.WithValue(ctx, contextKey{}, a)
}

// From returns the account of ctx, or nil.
func From(ctx context.Context) *Account {
	a, _ := ctx.Value(contextKey{}).(*Account)
	return a
}
