package ssh

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/host/internal/machine"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/shell"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// liars are sessions that follow the protocol, but answer every request with the same output.
type liars struct {
	Transport
	answer func(io.Writer) error
}

type liar struct {
	in             *io.PipeWriter
	stdout, stderr *io.PipeReader
	ended          chan struct{}
	once           sync.Once
}

func (t *liars) Start(context.Context, string) (link.Session, error) {
	return newLiar(func(in io.ReadCloser, stdout, stderr io.Writer) error {
		return sshtest.Lie(in, stdout, stderr, t.answer)
	}), nil
}

// newLiar is a session whose program is lie.
func newLiar(lie func(in io.ReadCloser, stdout, stderr io.Writer) error) *liar {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	errR, errW := io.Pipe()
	s := &liar{in: inW, stdout: outR, stderr: errR, ended: make(chan struct{})}
	go func() {
		err := lie(inR, outW, errW)
		inR.CloseWithError(err)
		outW.CloseWithError(err)
		errW.CloseWithError(err)
	}()
	return s
}

func (t *liars) Close() error { return nil }

func (s *liar) Stdin() io.WriteCloser { return s.in }
func (s *liar) Stdout() io.Reader     { return s.stdout }
func (s *liar) Stderr() io.Reader     { return s.stderr }
func (s *liar) Wait() (int, error)    { <-s.ended; return -1, net.ErrClosed }
func (s *liar) Close() error {
	s.once.Do(func() {
		close(s.ended)
		s.in.Close()
		s.stdout.Close()
		s.stderr.Close()
	})
	return nil
}

// repeated writes a text repeatedly, up to that many bytes.
func repeated(text string, size int) func(io.Writer) error {
	return func(w io.Writer) error {
		block := strings.Repeat(text, max(1, 32<<10/len(text)))
		for size := size; size > 0; size -= len(block) {
			if _, err := io.WriteString(w, block); err != nil {
				return err
			}
		}
		return nil
	}
}

// once writes a text once.
func once(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

func then(answers ...func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		for _, a := range answers {
			if err := a(w); err != nil {
				return err
			}
		}
		return nil
	}
}

// peak is the highest heap use while f runs, above the use before.
func peak(f func()) int64 {
	defer debug.SetGCPercent(debug.SetGCPercent(10))
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	stop, most := make(chan struct{}), make(chan uint64)
	go func() {
		var now runtime.MemStats
		highest := uint64(0)
		for {
			runtime.ReadMemStats(&now)
			highest = max(highest, now.HeapAlloc)
			select {
			case <-stop:
				most <- highest
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	f()
	close(stop)
	return int64(<-most) - int64(before.HeapAlloc)
}

var mountLine = "0 0 0 / /a r - x y\n"

// hostOps are the operations whose output a hostile host may make long.
var hostOps = map[string]struct {
	do     func(ctx context.Context, h *Host) error
	answer func(io.Writer) error
	kind   budget.Kind
	// spares: a pod may cause it, so the driver continues.
	spares bool
}{
	"mounts without end":               {listMounts, then(repeated("/\x00", 2), repeated(mountLine, 100<<20)), budget.OutputBytes, true},
	"too many mounts":                  {listMounts, then(repeated("/\x00", 2), repeated(mountLine, 7<<20)), budget.Items, true},
	"facts without end":                {facts, repeated("\x00", 100<<20), budget.OutputBytes, false},
	"too many facts":                   {facts, repeated("\x00", 7<<20), budget.Items, false},
	"an endless fact":                  {facts, then(repeated("route\x00", 6), repeated("x ", 7<<20)), budget.LineBytes, false},
	"measures without end":             {measure, repeated("\x00", 100<<20), budget.OutputBytes, false},
	"too many measures":                {measure, repeated("\x00", 7<<20), budget.Items, false},
	"counters without end":             {sample, repeated("\x00", 100<<20), budget.OutputBytes, false},
	"counters of too many cgroups":     {sample, then(repeated("counters\x00", 9), repeated("=/kubepods/x\nm 5\n", 7<<20)), budget.Items, false},
	"an endless counter":               {sample, then(repeated("counters\x00", 9), repeated("1 ", 7<<20)), budget.LineBytes, false},
	"too many usages":                  {usage, repeated("1 1\n", 7<<20), budget.Items, false},
	"a file beyond what was asked for": {readFile, repeated("x", 7<<20), budget.FileBytes, false},
	"an entry without end":             {list, repeated("x", 100<<20), budget.OutputBytes, true},
	"too many entries":                 {list, repeated("f 644 0 1 1 0 0\x00n\x00\x00", 7<<20), budget.Items, true},
	"too many cgroups":                 {listCgroups, repeated("\x00", 1<<20), budget.Items, false},
}

func listMounts(ctx context.Context, h *Host) error { _, err := h.ListMounts(ctx, "/"); return err }
func facts(ctx context.Context, h *Host) error      { _, err := h.Facts(ctx); return err }
func measure(ctx context.Context, h *Host) error    { _, err := h.Measure(ctx, "", "/"); return err }
func sample(ctx context.Context, h *Host) error {
	_, err := h.Sample(ctx, host.SampleRequest{Trees: []string{"/kubepods"}, Detail: true, OpenFiles: true})
	return err
}
func usage(ctx context.Context, h *Host) error    { _, err := h.DiskUsage(ctx, "/"); return err }
func list(ctx context.Context, h *Host) error     { _, err := h.List(ctx, "/"); return err }
func readFile(ctx context.Context, h *Host) error { _, err := h.ReadFile(ctx, "/x", 1<<20); return err }
func listCgroups(ctx context.Context, h *Host) error {
	_, err := h.ListCgroups(ctx, "/")
	return err
}

// liarHost is a host that behaved well while it was probed.
func liarHost(t *testing.T, answer func(io.Writer) error, a *budget.Account) *Host {
	h := hostileHost(&liars{answer: answer}, a)
	h.found.Store(&found{findPrintf: true, hier: machine.Hierarchies{Version: 2, V2: "/sys/fs/cgroup", All: []string{"/sys/fs/cgroup"}}})
	h.cgroupRoot = "/"
	t.Cleanup(func() { h.shells.Close() })
	return h
}

// TestLargeAnswersAreBounded: correctly framed output is bounded too, with an error that names
// the budget, and costs little until then.
func TestLargeAnswersAreBounded(t *testing.T) {
	for what, op := range hostOps {
		t.Run(what, func(t *testing.T) {
			account := budget.New(budget.Limits{})
			h := liarHost(t, op.answer, account)
			var err error
			cost := peak(func() { err = op.do(t.Context(), h) })
			var much *budget.ExceededError
			if !errors.As(err, &much) || much.Kind != op.kind {
				t.Errorf("error %v, want the budget %s", err, op.kind)
			}
			if spared := account.Err() == nil; spared != op.spares {
				t.Errorf("the account says %v", account.Err())
			}
			if what == "too many entries" && !errors.Is(err, host.ErrTooLarge) {
				t.Errorf("error %v is not ErrTooLarge", err)
			}
			if most := int64(32 << 20); cost > most {
				t.Errorf("it cost %d bytes, want at most %d", cost, most)
			}
			t.Logf("peak %d KiB: %v", cost>>10, err)
		})
	}
}

// TestLargeAnswersTakeTurns: four large answers within their limits cost hardly more than one.
func TestLargeAnswersTakeTurns(t *testing.T) {
	line := "1 1 0:1 / /" + strings.Repeat("d", 480) + " rw - tmpfs tmpfs rw\n"
	h := liarHost(t, then(once("/\x00"), repeated(line, 7<<20), once("\x00")), budget.New(budget.Limits{}))
	cost := peak(func() {
		var all sync.WaitGroup
		for range shell.MaxShells {
			all.Go(func() {
				mounts, err := h.ListMounts(t.Context(), "/")
				if err != nil || len(mounts) < 1<<13 {
					t.Errorf("%d mounts: %v", len(mounts), err)
				}
			})
		}
		all.Wait()
	})
	t.Logf("peak %d KiB", cost>>10)
	if limit := int64(64 << 20); cost > limit {
		t.Errorf("they cost %d bytes, want at most %d", cost, limit)
	}
}

// TestIdleShellThatPrints: output of an idle shell is read continuously and is bounded too.
// Unread, it would be buffered packet by packet.
func TestIdleShellThatPrints(t *testing.T) {
	answered := make(chan struct{})
	account := budget.New(budget.Limits{})
	var once sync.Once
	h := liarHost(t, func(w io.Writer) error {
		once.Do(func() {
			go func() {
				<-answered
				_ = repeated("x", 100<<20)(w)
			}()
		})
		return nil
	}, account)
	if _, err := h.ReadFile(t.Context(), "/x", 100); err != nil {
		t.Fatal(err)
	}
	close(answered)
	testutil.Receive(t, account.Exceeded(), 10*time.Second, "nothing was exceeded")
	var much *budget.ExceededError
	if !errors.As(account.Err(), &much) || much.Kind != budget.OutputBytes {
		t.Error(account.Err())
	}
}
