package relisten

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// forward is one listener of the host.
type forward struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (f *forward) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.closed:
		return nil, net.ErrClosed
	}
}
func (f *forward) Close() error   { f.once.Do(func() { close(f.closed) }); return nil }
func (f *forward) Addr() net.Addr { return nil }

func (f *forward) isClosed() bool {
	select {
	case <-f.closed:
		return true
	default:
		return false
	}
}

// world is a host, and the results that OnResult received.
type world struct {
	*Listener
	mu         sync.Mutex
	refusal    error // of Listen
	verdict    error // of Check
	slow       time.Duration
	began      time.Time
	tries      []time.Duration // of Listen, since the start
	reconnects []int           // number of tries before each Reconnect
	results    []error
	forwards   []*forward
}

// newWorld runs a listener until the test ends.
func newWorld(t *testing.T, prepare func(*world)) *world {
	t.Helper()
	w := &world{began: time.Now()}
	prepare(w)
	var err error
	w.Listener, err = New(Config{
		Address: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 10250},
		Listen: func(context.Context) (net.Listener, error) {
			w.mu.Lock()
			w.tries = append(w.tries, time.Since(w.began))
			refusal, slow := w.refusal, w.slow
			w.mu.Unlock()
			time.Sleep(slow)
			if refusal != nil {
				return nil, refusal
			}
			f := &forward{conns: make(chan net.Conn, 10), closed: make(chan struct{})}
			w.mu.Lock()
			defer w.mu.Unlock()
			w.forwards = append(w.forwards, f)
			return f, nil
		},
		Check: func(context.Context) error {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.verdict
		},
		Reconnect: func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reconnects = append(w.reconnects, len(w.tries))
		},
		OnResult: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.results = append(w.results, err)
		},
	})
	testutil.Must(t, err)
	stop := testutil.Go(t.Context(), w.Run)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
		for i, f := range w.forwards {
			if !f.isClosed() {
				t.Errorf("listener %d is left open", i)
			}
		}
	})
	return w
}

// last returns the newest listener and the last result of OnResult.
func (w *world) last() (*forward, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.results) == 0 {
		return nil, errors.New("there is no result")
	}
	if len(w.forwards) == 0 {
		return nil, w.results[len(w.results)-1]
	}
	return w.forwards[len(w.forwards)-1], w.results[len(w.results)-1]
}

func (w *world) set(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// seen waits until all is quiet and returns when Listen was called, after how many of these
// calls Reconnect was called, and how many listeners there were.
func (w *world) seen() (tries []time.Duration, reconnects []int, listeners int) {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.tries), slices.Clone(w.reconnects), len(w.forwards)
}

// comes sends a connection through a listener and checks that it is accepted.
func (w *world) comes(t *testing.T, f *forward) {
	t.Helper()
	ours, theirs := net.Pipe()
	defer ours.Close()
	f.conns <- theirs
	got, err := w.Accept()
	if err != nil || got != theirs {
		t.Fatalf("accepted %v, %v", got, err)
	}
	got.Close()
}

// TestOutlasts: underlying listeners come and go, and the caller of Accept does not notice.
func TestOutlasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(*world) {})
		for i := range 3 {
			synctest.Wait()
			f, err := w.last()
			if err != nil || f == nil {
				t.Fatalf("%d: the result is %v", i, err)
			}
			w.comes(t, f)
			f.Close() // as when its link ends
			synctest.Wait()
			if _, err := w.last(); !errors.Is(err, host.ErrUnreachable) {
				t.Errorf("%d: after its end the result is %v", i, err)
			}
			time.Sleep(reachWait)
		}
		if tries, reconnects, _ := w.seen(); len(tries) != 4 || len(reconnects) != 0 {
			t.Errorf("it was tried at %v, reconnects after %v", tries, reconnects)
		}
		if a := w.Addr().String(); a != "10.0.0.7:10250" {
			t.Errorf("the address is %s", a)
		}
		w.Close()
		w.Close()
		if _, err := w.Accept(); err != net.ErrClosed {
			t.Errorf("Accept after Close: %v", err)
		}
		time.Sleep(time.Hour)
		if tries, _, _ := w.seen(); len(tries) != 4 {
			t.Errorf("it was tried after Close, at %v", tries)
		}
	})
}

// TestRefused: the listener retries soon, because the last holder of the port may be ending;
// then with growing waits, after Reconnect; and at once after Retry.
func TestRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusal := errors.New("no")
		w := newWorld(t, func(w *world) { w.refusal = refusal })
		time.Sleep(4 * time.Minute)
		var want []time.Duration
		at := time.Duration(0)
		for _, wait := range []time.Duration{0, 1, 2, 4, 8, 16, 32, 60, 60} {
			at += wait * time.Second
			want = append(want, at)
		}
		tries, reconnects, _ := w.seen()
		if !slices.Equal(tries, want) {
			t.Errorf("it was tried at %v, want %v", tries, want)
		}
		if !slices.Equal(reconnects, []int{4, 5, 6, 7, 8}) {
			t.Errorf("reconnects before the tries %v", reconnects)
		}
		if _, err := w.last(); !errors.Is(err, refusal) {
			t.Errorf("the result is %v", err)
		}
		w.set(func() { w.refusal = nil })
		w.Retry()
		synctest.Wait()
		f, err := w.last()
		if err != nil {
			t.Fatalf("after a retry the result is %v", err)
		}
		w.comes(t, f)
	})
}

// TestUnreachable: an unreachable host does not count as a refusal.
func TestUnreachable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(w *world) { w.refusal = fmt.Errorf("gone: %w", host.ErrUnreachable) })
		time.Sleep(time.Minute + time.Second)
		if tries, reconnects, _ := w.seen(); len(tries) != 31 || len(reconnects) > 0 {
			t.Errorf("tries in a minute: %v, reconnects after %v", tries, reconnects)
		}
		w.set(func() { w.refusal = nil })
		time.Sleep(reachWait)
		synctest.Wait()
		if _, err := w.last(); err != nil {
			t.Errorf("the result is %v", err)
		}
	})
}

// TestCheck: if clients cannot reach the listener, it is closed; if that is unknown, it stays.
func TestCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		verdict := errors.New("loopback only")
		w := newWorld(t, func(w *world) { w.verdict = verdict })
		synctest.Wait()
		if f, err := w.last(); !errors.Is(err, verdict) || !f.isClosed() {
			t.Errorf("the result is %v, closed %v", err, f.isClosed())
		}
		// The wait has begun. A look that times out is repeated, then given up.
		w.set(func() { w.verdict = context.DeadlineExceeded })
		time.Sleep(firstWait)
		synctest.Wait()
		f, _ := w.last()
		if f.isClosed() {
			t.Error("a look that is late has closed it")
		}
		w.comes(t, f)
		time.Sleep(time.Minute)
		synctest.Wait()
		if last, err := w.last(); !errors.Is(err, ErrUnknown) || last != f || f.isClosed() {
			t.Errorf("the result is %v, closed %v", err, f.isClosed())
		}
		// An unknown result is checked again later.
		w.set(func() { w.verdict = nil })
		time.Sleep(longestWait)
		synctest.Wait()
		if last, err := w.last(); err != nil || last != f || f.isClosed() {
			t.Errorf("the result is %v, closed %v, after a look in time", err, f.isClosed())
		}
		if _, _, n := w.seen(); n != 2 {
			t.Errorf("there were %d listeners", n)
		}
	})
}

// TestDrop: Drop ends the current listener and a Listen in progress.
func TestDrop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, func(*world) {})
		synctest.Wait()
		first, err := w.last()
		testutil.Must(t, err)
		w.set(func() { w.slow = 5 * time.Second })
		w.Drop()
		synctest.Wait()
		if !first.isClosed() {
			t.Fatal("the listener is open after a drop")
		}
		time.Sleep(reachWait + time.Second) // the next Listen is in progress
		w.Drop()
		w.set(func() { w.slow = 0 })
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if second, err := w.last(); !errors.Is(err, host.ErrUnreachable) || second == first || !second.isClosed() {
			t.Errorf("a listener that a drop overtook: %v", err)
		}
		time.Sleep(reachWait)
		synctest.Wait()
		third, err := w.last()
		if _, _, n := w.seen(); err != nil || n != 3 {
			t.Fatalf("the result is %v after %d listeners", err, n)
		}
		w.comes(t, third)
	})
}

func TestConfigIsChecked(t *testing.T) {
	if _, err := New(Config{Address: &net.TCPAddr{Port: 1}}); err == nil {
		t.Error("a listener that cannot listen was made")
	}
}

// A panic on what the host answers ends that driver, not the process.
func TestAPanicOfACheckIsTheDrivers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		account := budget.New(budget.Limits{})
		l, err := New(Config{
			Address: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 10250}, Budget: account,
			Listen: func(context.Context) (net.Listener, error) {
				return &forward{conns: make(chan net.Conn), closed: make(chan struct{})}, nil
			},
			Check:    func(context.Context) error { panic("found") },
			OnResult: func(error) {},
		})
		testutil.Must(t, err)
		stop := testutil.Go(t.Context(), l.Run)
		<-account.Exceeded()
		if e := (*budget.ExceededError)(nil); !errors.As(account.Err(), &e) || e.Kind != budget.Panic {
			t.Errorf("the account has %v", account.Err())
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
