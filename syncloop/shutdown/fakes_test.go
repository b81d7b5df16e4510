package shutdown

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/shutdown/order"
)

var errNoInit = errors.New("no one to ask")

// world is a host with an init, its pods, and the watching manager. Its diary records everything
// that happens, with the time since the beginning.
type world struct {
	*testing.T
	began time.Time

	mu       sync.Mutex
	diary    []string
	going    bool
	held     bool
	absent   bool // Open fails with an absent error
	cut      bool // the host cannot be reached
	deaf     int  // how many calls get no answer
	session  *session
	sessions int
	boots    int
	delay    time.Duration

	unknown  bool // the pods of the node are not known
	silent   bool // the API server receives nothing
	pods     []*v1.Pod
	takes    map[types.UID]time.Duration // how long a pod takes to end; its grace period by default
	overAt   map[types.UID]time.Time
	revivals int
	// phases are when the manager began to end the pods, and when it had ended, since the beginning.
	phases []string
}

func newWorld(t *testing.T) *world {
	return &world{T: t, began: time.Now(), delay: time.Hour, takes: map[types.UID]time.Duration{}, overAt: map[types.UID]time.Time{}}
}

func (w *world) note(format string, args ...any) {
	w.diary = append(w.diary, fmt.Sprintf("%s ", time.Since(w.began).Truncate(100*time.Millisecond))+fmt.Sprintf(format, args...))
}

// wants fails unless exactly this has happened since the previous call.
func (w *world) wants(lines ...string) {
	w.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.diary, lines) {
		w.Errorf("what happened is\n%q\nwant\n%q", w.diary, lines)
	}
	w.diary = nil
}

// wantsAnyTime is wants without the times, which depend on the pauses between retries.
func (w *world) wantsAnyTime(lines ...string) {
	w.Helper()
	w.mu.Lock()
	for i, line := range w.diary {
		_, w.diary[i], _ = strings.Cut(line, " ")
	}
	w.mu.Unlock()
	w.wants(lines...)
}

func (w *world) pod(name string, priority int32, takes time.Duration) {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1.PodSpec{Priority: &priority}}
	w.pods = append(w.pods, p)
	w.takes[p.UID] = takes
}

// change applies a change of the host and pokes the session.
func (w *world) change(f func()) {
	w.mu.Lock()
	f()
	s := w.session
	w.mu.Unlock()
	if s != nil {
		select {
		case s.hints <- struct{}{}:
		default:
		}
	}
	synctest.Wait()
}

// unlink ends the session as a dead link does: the inhibitor ends with it.
func (w *world) unlink() {
	w.mu.Lock()
	w.cut, w.held = true, false
	s := w.session
	w.mu.Unlock()
	if s != nil {
		s.end(fmt.Errorf("the link: %w", host.ErrUnreachable))
	}
	synctest.Wait()
}

func (w *world) manager(periods ...order.Period) *Manager {
	m, err := New(Config{
		Open: w.open, Absent: func(err error) bool { return errors.Is(err, errNoInit) },
		BootID: func(context.Context) (string, error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.cut {
				return "", host.ErrUnreachable
			}
			return fmt.Sprint("boot ", w.boots), nil
		},
		Pods: w, Periods: periods,
		Event: func(kind, reason, message string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.note("event %s: %s", reason, message)
		},
		Changed: func(going bool) { w.mu.Lock(); defer w.mu.Unlock(); w.note("going %v", going) },
		Began:   func(at time.Time) { w.phase("began", at) }, Ended: func(at time.Time) { w.phase("ended", at) },
	})
	testutil.Must(w, err)
	return m
}

func (w *world) phase(name string, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.phases = append(w.phases, fmt.Sprint(name, " ", at.Sub(w.began)))
}

// run runs a manager; stop ends it like the end of our process.
func (w *world) run(m *Manager) (stop func()) {
	end := testutil.Go(context.Background(), m.Run)
	synctest.Wait()
	return func() {
		if err := end(); err != nil {
			w.Errorf("it ended with %v", err)
		}
	}
}

func (w *world) open(context.Context) (Session, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.cut:
		return nil, fmt.Errorf("open: %w", host.ErrUnreachable)
	case w.absent:
		w.sessions++
		return nil, errNoInit
	}
	w.sessions++
	w.session = &session{w: w, hints: make(chan struct{}, 1), ended: make(chan struct{})}
	return w.session, nil
}

type session struct {
	w     *world
	hints chan struct{}
	ended chan struct{}
	once  sync.Once
	err   error
}

func (s *session) end(err error) { s.once.Do(func() { s.err = err; close(s.ended) }) }

func (s *session) Delay() time.Duration   { return s.w.delay }
func (s *session) Hints() <-chan struct{} { return s.hints }
func (s *session) Ended() <-chan struct{} { return s.ended }
func (s *session) Err() error             { return s.err }

func (s *session) Preparing(context.Context) (bool, error) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.cut {
		return false, host.ErrUnreachable
	}
	if s.w.deaf > 0 {
		s.w.deaf--
		return false, errors.New("no answer")
	}
	return s.w.going, nil
}

func (s *session) Hold(context.Context) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	switch {
	case s.w.cut:
		return host.ErrUnreachable
	case s.w.going:
		return errors.New("refused")
	case s.w.held:
		s.w.Error("held twice")
	}
	s.w.held = true
	s.w.note("held")
	return nil
}

func (s *session) Release(context.Context) error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if !s.w.held {
		s.w.Error("released and not held")
	}
	s.w.held = false
	s.w.note("released")
	return nil
}

func (s *session) Close() error {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.held = false
	if s.w.session == s {
		s.w.session = nil
	}
	return nil
}

func (w *world) Known() bool { w.mu.Lock(); defer w.mu.Unlock(); return !w.unknown }

func (w *world) Unended() []*v1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.pods), func(p *v1.Pod) bool { return w.over(p) })
}

func (w *world) End(p *v1.Pod, grace time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("end %s %s", p.Name, grace)
	takes := w.takes[p.UID]
	if takes == 0 {
		takes = grace
	}
	if _, told := w.overAt[p.UID]; !told {
		w.overAt[p.UID] = time.Now().Add(takes)
	}
}

func (w *world) over(p *v1.Pod) bool {
	at, told := w.overAt[p.UID]
	return told && !time.Now().Before(at)
}

func (w *world) Over(p *v1.Pod) bool { w.mu.Lock(); defer w.mu.Unlock(); return w.over(p) }
func (w *world) Reported(p *v1.Pod) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.over(p) && !w.silent
}

func (w *world) Revive() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.note("revive")
	w.revivals--
	return w.revivals > 0
}
