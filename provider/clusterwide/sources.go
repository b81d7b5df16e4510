package clusterwide

import (
	"context"
	"errors"
	"slices"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
)

// source is the client of one node.
type source struct {
	client kubernetes.Interface
	ctx    context.Context // ends when the node leaves
	cancel context.CancelFunc
	uses   sync.WaitGroup // calls and watches in progress
}

func newSource(client kubernetes.Interface) *source {
	s := &source{client: client}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// sources are the clients that a view may use; the first one is used.
type sources struct {
	mu    sync.Mutex
	order []*source
}

func (l *sources) add(s *source) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.order = append(l.order, s)
}

// remove ends the calls of s, and reports whether it was the last one.
func (l *sources) remove(s *source) (last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.order = slices.DeleteFunc(l.order, func(o *source) bool { return o == s })
	s.cancel()
	return len(l.order) == 0
}

// giveWay moves s to the end.
func (l *sources) giveWay(s *source) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.order, s); i >= 0 {
		l.order = append(slices.Delete(l.order, i, i+1), s)
	}
}

// use returns the first source, with its uses incremented, and the number of sources.
func (l *sources) use() (*source, int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.order) == 0 {
		return nil, 0
	}
	s := l.order[0]
	s.uses.Add(1)
	return s, len(l.order)
}

// errNone is returned by a view that is about to be closed.
var errNone = errors.New("no node is left to read by")

// try calls with the first source, and moves a failing one to the end. It tries the next source at
// once if the API server has refused the request, or if the node has left. After any other error
// the caller retries at its own pace, because the other clients may get no answer either.
func (l *sources) try(ctx context.Context, call func(context.Context, *source) error) error {
	var refused error
	for tried := 0; ; tried++ {
		s, n := l.use()
		switch {
		case s == nil:
			return errNone
		case refused != nil && tried >= n: // all have been tried
			s.uses.Done()
			return refused
		}
		err := l.once(ctx, s, call)
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case s.ctx.Err() != nil:
			tried = -1 // try all of the remaining ones
			continue
		}
		l.giveWay(s)
		if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			return err
		}
		refused = err
	}
}

// once calls with s, and cancels the call if s leaves.
func (l *sources) once(ctx context.Context, s *source, call func(context.Context, *source) error) error {
	defer s.uses.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	return call(ctx, s)
}
