package fake

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Fault is a fault in calls of one method.
type Fault struct {
	// Before is returned without executing the call.
	Before error
	// Delay comes first; the end of the caller's context ends it.
	Delay time.Duration
	// Hold, if not nil, delays the call before its execution until Hold is closed.
	Hold <-chan struct{}
	// Within, if not nil, delays a StartContainer in the middle, until Within is closed. If the
	// caller goes away meanwhile, the start is aborted and the container fails, as on containerd.
	Within <-chan struct{}
	// HoldAnswer, if not nil, delays the answer of an executed call until HoldAnswer is closed.
	HoldAnswer <-chan struct{}
	// After is returned instead of the answer, after the call is executed.
	After error
	// Withhold executes the call and never answers; the caller's deadline ends it.
	Withhold bool
	// Times is how many calls it affects; 0 means one, -1 all.
	Times int
	// Match, if not nil, selects the requests that it affects.
	Match func(request any) bool
}

// Inject adds a fault to a method ("StopContainer"); a call consumes the first remaining
// fault of its method.
func (r *Runtime) Inject(method string, f Fault) { r.faults.inject(method, f) }

// ClearFaults removes every fault. Calls that a fault already blocks stay blocked.
func (r *Runtime) ClearFaults() { r.faults.clear() }

// Calls returns how often a method was called.
func (r *Runtime) Calls(method string) int { return r.faults.calls(method) }

type faults struct {
	mu     sync.Mutex
	list   map[string][]*Fault
	count  map[string]int
	closed chan struct{}
}

func (f *faults) inject(method string, fault Fault) {
	if fault.Times == 0 {
		fault.Times = 1
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.list == nil {
		f.list = map[string][]*Fault{}
	}
	f.list[method] = append(f.list[method], &fault)
}

func (f *faults) clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.list = nil
}

func (f *faults) calls(method string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count[method]
}

func (f *faults) done() chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed == nil {
		f.closed = make(chan struct{})
	}
	return f.closed
}

// release ends every held call, at Close.
func (f *faults) release() {
	c := f.done()
	f.mu.Lock()
	defer f.mu.Unlock()
	select {
	case <-c:
	default:
		close(c)
	}
}

// take counts a call and uses up its fault, if any.
func (f *faults) take(full string, request any) (Fault, bool) {
	method := full[strings.LastIndexByte(full, '/')+1:]
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.count == nil {
		f.count = map[string]int{}
	}
	f.count[method]++
	for i, fault := range f.list[method] {
		if fault.Match != nil && !fault.Match(request) {
			continue
		}
		if fault.Times > 0 {
			if fault.Times--; fault.Times == 0 {
				rest := append([]*Fault(nil), f.list[method][:i]...)
				f.list[method] = append(rest, f.list[method][i+1:]...)
			}
		}
		return *fault, true
	}
	return Fault{}, false
}

// before applies what precedes the call.
func (f *faults) before(ctx context.Context, fault Fault) error {
	if fault.Delay > 0 {
		select {
		case <-time.After(fault.Delay):
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-f.done():
			return status.Error(codes.Unavailable, "closing")
		}
	}
	if err := f.await(ctx, fault.Hold); err != nil {
		return err
	}
	return fault.Before
}

// await waits until hold is closed; it does not wait if hold is nil.
func (f *faults) await(ctx context.Context, hold <-chan struct{}) error {
	if hold == nil {
		return nil
	}
	select {
	case <-hold:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	case <-f.done():
		return status.Error(codes.Unavailable, "closing")
	}
}

type withinKey struct{}

// within waits as Fault.Within says. It returns an error if the call is to be aborted.
func (f *faults) within(ctx context.Context) error {
	hold, _ := ctx.Value(withinKey{}).(<-chan struct{})
	if err := f.await(ctx, hold); err != nil {
		return err
	}
	return ctx.Err()
}

func (f *faults) unary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	fault, ok := f.take(info.FullMethod, req)
	if !ok {
		return handle(ctx, req)
	}
	if err := f.before(ctx, fault); err != nil {
		return nil, err
	}
	reply, err := handle(context.WithValue(ctx, withinKey{}, fault.Within), req)
	if fault.Withhold {
		select {
		case <-ctx.Done():
		case <-f.done():
		}
		return nil, status.Error(codes.Unavailable, "the answer is withheld")
	}
	if err := f.await(ctx, fault.HoldAnswer); err != nil {
		return nil, err
	}
	if fault.After != nil {
		return nil, fault.After
	}
	return reply, err
}

func (f *faults) stream(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	fault, ok := f.take(info.FullMethod, nil)
	if ok {
		if err := f.before(ss.Context(), fault); err != nil {
			return err
		}
	}
	return handle(srv, ss)
}
