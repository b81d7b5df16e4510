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
	uses   sync.WaitGroup // calls and watches
}

func newSource(client kubernetes.Interface) *source {
	s := &source{client: client}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	return s
}

// sources are the clients by which a view is read; the first is used.
type sources struct {
	mu    sync.Mutex
	order []*source
}

func (l *sources) add(s *source) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.order = append(l.order, s)
}

// remove ends what s does, and says whether it was the last one.
func (l *sources) remove(s *source) (last bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.order = slices.DeleteFunc(l.order, func(o *source) bool { return o == s })
	s.cancel()
	return len(l.order) == 0
}

// giveWay makes s the last to be used.
func (l *sources) giveWay(s *source) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.order, s); i >= 0 {
		l.order = append(slices.Delete(l.order, i, i+1), s)
	}
}

// use is the first source, whose uses has one more, and how many there are.
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

// errNone is for a view that is about to be closed.
var errNone = errors.New("no node is left to read by")

// try calls with the first source. One that fails gives way. The next is tried at once
// where the API server has refused this one, or its node has left; without an answer
// the caller tries again in its own time, as the others may have none either.
func (l *sources) try(ctx context.Context, call func(context.Context, *source) error) error {
	var refused error
	for tried := 0; ; tried++ {
		s, n := l.use()
		switch {
		case s == nil:
			return errNone
		case refused != nil && tried >= n: // each has been asked
			s.uses.Done()
			return refused
		}
		err := l.once(ctx, s, call)
		switch {
		case err == nil || ctx.Err() != nil:
			return err
		case s.ctx.Err() != nil:
			tried = -1 // those who are left are asked, each
			continue
		}
		l.giveWay(s)
		if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			return err
		}
		refused = err
	}
}

// once calls with s, until it leaves.
func (l *sources) once(ctx context.Context, s *source, call func(context.Context, *source) error) error {
	defer s.uses.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.ctx, cancel)()
	return call(ctx, s)
}
