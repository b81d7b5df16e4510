package logs_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	crilogs "github.com/bowline-k8s/bowline/cri/logs"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/host/ssh"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/host/ssh/link/linktest"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/logs"
)

// errTransport is an error after which it is unknown if the call took effect.
var errTransport = errors.New("the runtime is away")

// container is a container for which the test acts as the runtime: it writes lines to the open
// file, whatever its name is by now.
type container struct {
	path string

	mu     sync.Mutex
	f      *os.File
	lines  int
	asked  int
	refuse []error // errors of the next ReopenContainerLog calls; nil opens
	after  error   // returned although the log was opened
}

func newContainer(t *testing.T, name string) *container {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "ns_p_uid", name)
	testutil.Must(t, os.MkdirAll(dir, 0o755))
	c := &container{path: filepath.Join(dir, "0.log")}
	testutil.Must(t, c.open())
	t.Cleanup(func() { c.f.Close() })
	return c
}

func (c *container) open() error {
	f, err := os.OpenFile(c.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o640)
	c.f = f
	return err
}

func (c *container) write(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for range n {
		fmt.Fprintf(c.f, "%s stdout F n %d\n", time.Now().UTC().Format(time.RFC3339Nano), c.lines)
		c.lines++
	}
}

func (c *container) ReopenContainerLog(context.Context, string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	if len(c.refuse) > 0 {
		err := c.refuse[0]
		c.refuse = c.refuse[1:]
		if err != nil {
			return err
		}
	}
	old := c.f
	if err := c.open(); err != nil {
		return err
	}
	return errors.Join(old.Close(), c.after)
}

// rotator returns a Rotator that rotates c's log beyond 1 KiB.
func (c *container) rotator(t *testing.T, h logs.Host, maxFiles int) *logs.Rotator {
	t.Helper()
	r, err := logs.New(logs.Config{
		Host: h, Runtime: c, LogsRoot: filepath.Dir(filepath.Dir(filepath.Dir(c.path))), MaxSize: 1 << 10, MaxFiles: maxFiles, MaxWorkers: 1, Interval: time.Second,
		Containers:  func() []logs.Container { return []logs.Container{{ID: "id", LogPath: c.path}} },
		IsTransport: func(err error) bool { return errors.Is(err, errTransport) },
	})
	testutil.Must(t, err)
	return r
}

// files returns the sorted names of the files in the log's directory.
func (c *container) files(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Dir(c.path))
	testutil.Must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func near(t *testing.T) host.Host {
	t.Helper()
	h, err := local.New(local.Config{})
	testutil.Must(t, err)
	return h
}

func sweep(t *testing.T, r *logs.Rotator, want int) {
	t.Helper()
	if n, err := r.Sweep(t.Context()); err != nil || n != want {
		t.Fatalf("rotated %d, want %d: %v", n, want, err)
	}
}

func TestRotation(t *testing.T) {
	c := newContainer(t, "c")
	r := c.rotator(t, near(t), 4)
	c.write(1)
	sweep(t, r, 0) // too small
	if names := c.files(t); len(names) != 1 || c.asked != 0 {
		t.Fatalf("a small log: %v, opened %d times", names, c.asked)
	}
	for i := range 6 {
		c.write(100)
		sweep(t, r, 1)
		names := c.files(t)
		if len(names) != min(i+2, 4) || names[0] != "0.log" {
			t.Fatalf("after rotation %d: %v", i, names)
		}
		for j, n := range names[1:] {
			// All rotated logs but the last one are compressed.
			if strings.HasSuffix(n, ".gz") != (j < len(names)-2) {
				t.Errorf("after rotation %d: %v", i, names)
			}
		}
		if st, err := os.Stat(c.path); err != nil || st.Size() != 0 || st.Mode() != 0o640 {
			t.Errorf("the new log: %v, %v", st, err)
		}
	}
}

// A rotation that fails at any step leaves the log readable, or a later sweep repairs it.
func TestRotationThatFails(t *testing.T) {
	refused := errors.New("container is not running")
	t.Run("the runtime refuses: the log has its name back", func(t *testing.T) {
		c := newContainer(t, "c")
		r := c.rotator(t, near(t), 5)
		c.refuse = []error{refused}
		c.write(100)
		if _, err := r.Sweep(t.Context()); !errors.Is(err, refused) || !strings.Contains(err.Error(), c.path) {
			t.Errorf("error %v", err)
		}
		if names := c.files(t); !slices.Equal(names, []string{"0.log"}) {
			t.Errorf("files: %v", names)
		}
		sweep(t, r, 1)
	})
	t.Run("the answer is lost: what was opened stays", func(t *testing.T) {
		for _, lost := range []error{errTransport, refused} {
			c := newContainer(t, "c")
			r := c.rotator(t, near(t), 5)
			c.after = lost
			c.write(100)
			if _, err := r.Sweep(t.Context()); !errors.Is(err, lost) {
				t.Errorf("error %v", err)
			}
			c.after = nil
			c.write(1)
			sweep(t, r, 0)
			if names := c.files(t); len(names) != 2 {
				t.Errorf("%v: files: %v", lost, names)
			}
			if st, err := os.Stat(c.path); err != nil || st.Size() == 0 || st.Size() > 100 {
				t.Errorf("%v: the new log: %v, %v", lost, st, err)
			}
		}
	})
	t.Run("the question is lost: asked again", func(t *testing.T) {
		c := newContainer(t, "c")
		r := c.rotator(t, near(t), 5)
		c.refuse = []error{errTransport, errTransport, nil}
		c.write(100)
		for range 2 {
			if _, err := r.Sweep(t.Context()); !errors.Is(err, errTransport) {
				t.Errorf("error %v", err)
			}
			if names := c.files(t); len(names) != 1 || names[0] == "0.log" {
				t.Errorf("files: %v", names)
			}
		}
		sweep(t, r, 0)
		if names := c.files(t); len(names) != 2 || c.asked != 3 {
			t.Errorf("files: %v, opened %d times", names, c.asked)
		}
	})
	t.Run("what cannot be compressed stays as it is", func(t *testing.T) {
		c := newContainer(t, "c")
		broken := errors.New("no program gzip")
		r := c.rotator(t, &faulty{Host: near(t), compress: broken}, 4)
		for i := range 5 {
			c.write(100)
			if _, err := r.Sweep(t.Context()); errors.Is(err, broken) != (i > 0) {
				t.Errorf("rotation %d: %v", i, err)
			}
		}
		if names := c.files(t); len(names) != 4 || strings.Contains(strings.Join(names, " "), ".gz") {
			t.Errorf("files: %v", names)
		}
	})
	t.Run("the machine is away: nothing is done", func(t *testing.T) {
		c := newContainer(t, "c")
		remote := &faulty{Host: near(t), stat: host.ErrUnreachable}
		r := c.rotator(t, remote, 4)
		c.write(100)
		if _, err := r.Sweep(t.Context()); !errors.Is(err, host.ErrUnreachable) {
			t.Errorf("error %v", err)
		}
		remote.stat = nil
		sweep(t, r, 1)
		c.write(100)
		remote.compress = host.ErrUnreachable
		if _, err := r.Sweep(t.Context()); !errors.Is(err, host.ErrUnreachable) || c.asked != 1 {
			t.Errorf("error %v, opened %d times", err, c.asked)
		}
	})
	t.Run("one log's error is no other's", func(t *testing.T) {
		bad, good := newContainer(t, "bad"), newContainer(t, "good")
		bad.write(100)
		good.write(100)
		bad.refuse = []error{refused}
		r, err := logs.New(logs.Config{
			Host: near(t), LogsRoot: os.TempDir(), MaxSize: 1 << 10, MaxFiles: 3, MaxWorkers: 2, Interval: time.Second,
			Runtime: byID{"bad": bad, "good": good},
			Containers: func() []logs.Container {
				return []logs.Container{{"bad", bad.path}, {"good", good.path}, {"odd", "/etc/hosts"}, {"odder", os.TempDir() + "/../etc/hosts"}}
			},
			IsTransport: func(error) bool { return false },
		})
		testutil.Must(t, err)
		if n, err := r.Sweep(t.Context()); n != 1 || !errors.Is(err, refused) || len(good.files(t)) != 2 {
			t.Errorf("rotated %d, %v: %v", n, err, good.files(t))
		}
	})
	t.Run("a container that has ended is no error", func(t *testing.T) {
		c := newContainer(t, "c")
		c.write(100)
		c.refuse = []error{refused}
		looks := 0
		r, err := logs.New(logs.Config{
			Host: near(t), Runtime: c, LogsRoot: os.TempDir(), MaxSize: 1 << 10, MaxFiles: 3, MaxWorkers: 1, Interval: time.Second,
			Containers: func() []logs.Container {
				if looks++; looks > 1 {
					return nil
				}
				return []logs.Container{{"id", c.path}}
			},
			IsTransport: func(error) bool { return false },
		})
		testutil.Must(t, err)
		sweep(t, r, 0)
		if names := c.files(t); !slices.Equal(names, []string{"0.log"}) {
			t.Errorf("files: %v", names)
		}
	})
}

type byID map[string]*container

func (b byID) ReopenContainerLog(ctx context.Context, id string) error {
	return b[id].ReopenContainerLog(ctx, id)
}

// faulty is a host whose calls fail.
type faulty struct {
	logs.Host
	stat, compress error
}

func (f *faulty) FileSizes(ctx context.Context, paths []string) ([]int64, error) {
	if f.stat != nil {
		return nil, f.stat
	}
	return f.Host.FileSizes(ctx, paths)
}

func (f *faulty) Compress(ctx context.Context, path string) error {
	if f.compress != nil {
		return f.compress
	}
	return f.Host.Compress(ctx, path)
}

func remote(t *testing.T) host.Host {
	t.Helper()
	l := linktest.Run(t, sshtest.Run(t), link.Config{})
	h, err := ssh.New(t.Context(), ssh.Config{Name: "remote", Transport: l})
	testutil.Must(t, err)
	t.Cleanup(func() { _ = h.Close() })
	return h
}

// TestFollowedWhileRotated: a container writes without a pause, its log is rotated as fast as the
// host can, and followers see each line once, locally and over SSH.
func TestFollowedWhileRotated(t *testing.T) {
	for name, c := range map[string]struct {
		machine   func(*testing.T) host.Host
		rotations int
	}{"near": {near, 30}, "remote": {remote, 8}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, box := c.machine(t), newContainer(t, "c")
			ended := make(chan struct{})
			running := func(context.Context) (bool, error) {
				select {
				case <-ended:
					return false, nil
				default:
					return true, nil
				}
			}
			followers := []*follower{{begun: make(chan struct{})}, {begun: make(chan struct{}), stall: 3 * time.Second}}
			box.write(1)
			var all sync.WaitGroup
			for _, f := range followers {
				all.Go(func() {
					f.err = crilogs.Read(t.Context(), h, box.path, &v1.PodLogOptions{Follow: true}, running, f, f)
				})
			}
			for _, f := range followers {
				<-f.begun
			}
			stop := make(chan struct{})
			all.Go(func() {
				for {
					select {
					case <-stop:
						close(ended)
						return
					default:
						box.write(20)
						<-time.After(time.Millisecond)
					}
				}
			})
			r := box.rotator(t, h, 1000) // none is removed before the followers have read it
			for done := 0; done < c.rotations; {
				n, err := r.Sweep(t.Context())
				if err != nil {
					t.Error(err)
					break
				}
				done += n
			}
			close(stop)
			all.Wait()
			for i, f := range followers {
				if f.err != nil {
					t.Errorf("follower %d: %v", i, f.err)
				}
				lines := strings.Split(strings.TrimSuffix(f.text.String(), "\n"), "\n")
				for n, l := range lines {
					if l != fmt.Sprint("n ", n) {
						t.Fatalf("follower %d: line %d is %q", i, n, l)
					}
				}
				if len(lines) != box.lines {
					t.Errorf("follower %d saw %d lines of %d", i, len(lines), box.lines)
				}
			}
		})
	}
}

// follower keeps what it reads, and can pause once.
type follower struct {
	begun chan struct{} // closed at the first line
	text  strings.Builder
	stall time.Duration
	err   error
}

func (f *follower) Write(b []byte) (int, error) {
	if f.text.Len() == 0 {
		close(f.begun)
	}
	if f.stall > 0 {
		<-time.After(f.stall)
		f.stall = 0
	}
	return f.text.Write(b)
}
