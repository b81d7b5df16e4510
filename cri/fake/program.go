package fake

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"strings"
	"sync"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cri/fake/program"
)

// Program is what a container, or an exec in it, runs. It returns the exit code, and must return
// when ctx ends, which stands for SIGKILL.
type Program func(ctx context.Context, p *Process) int

// Process is a container's first process or an exec in it.
type Process struct {
	Config         *runtimeapi.ContainerConfig
	Sandbox        *runtimeapi.PodSandboxConfig
	ContainerID    string
	Args           []string // command and args, without the image's defaults
	Env            []string // NAME=value
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	Term           <-chan struct{} // one value per SIGTERM; nil for an exec
	Exec           bool            // it is an exec

	r       *Runtime
	sandbox *sandbox
	program bool
}

// TestImage is a part of the references of images that run package program, in any registry.
const TestImage = "bowline-test"

// DefaultProgram runs package program for the test image, and for commands that name it. Every
// other image waits for SIGTERM and exits 0; every other exec succeeds without output.
func DefaultProgram(ctx context.Context, p *Process) int {
	if p.program || len(p.Args) > 0 && p.Args[0] == "/"+TestImage {
		return program.Run(ctx, p.world())
	}
	if p.Exec {
		return 0
	}
	select {
	case <-p.Term:
		return 0
	case <-ctx.Done():
		return 137
	}
}

func (p *Process) world() program.World {
	args := p.Args
	if len(args) > 0 && args[0] == "/"+TestImage {
		args = args[1:]
	}
	return program.World{
		Args: args, Env: p.Env, Stdin: p.Stdin, Stdout: p.Stdout, Stderr: p.Stderr, Term: p.Term,
		Path: p.Path, Listen: p.listen,
	}
}

// Path converts a path in the container to a local one, through its mounts. A path outside all
// mounts becomes one that does not exist.
func (p *Process) Path(inside string) string {
	best, host := "", ""
	for _, m := range p.Config.GetMounts() {
		at := path.Clean(m.ContainerPath)
		if (inside == at || strings.HasPrefix(inside, at+"/")) && len(at) > len(best) {
			best, host = at, m.HostPath
		}
	}
	if best == "" {
		return "/nonexistent" + inside
	}
	return p.r.config.Root + host + strings.TrimPrefix(inside, best)
}

// listen opens a port in the sandbox's network: a loopback port that PortForward finds.
func (p *Process) listen(_ context.Context, port int) (net.Listener, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p.r.mu.Lock()
	defer p.r.mu.Unlock()
	if !p.sandbox.ready {
		_ = l.Close()
		return nil, errors.New("the sandbox is stopped")
	}
	p.sandbox.listeners[port] = l
	close(p.r.listened)
	p.r.listened = make(chan struct{})
	return l, nil
}

// Listening waits until a program in a sandbox listens on a port. As on a real host, that is a
// moment after the start of its container.
func (r *Runtime) Listening(ctx context.Context, sandboxID string, port int) error {
	for {
		r.mu.Lock()
		sb, ok := find(r.sandboxes, sandboxID)
		there, listened := ok && sb.listeners[port] != nil, r.listened
		r.mu.Unlock()
		switch {
		case there:
			return nil
		case !ok:
			return fmt.Errorf("fake: there is no sandbox %s", sandboxID)
		}
		select {
		case <-listened:
		case <-ctx.Done():
			return fmt.Errorf("fake: nothing listens on port %d of sandbox %s: %w", port, sandboxID, ctx.Err())
		}
	}
}

func arguments(c *runtimeapi.ContainerConfig) []string {
	return append(append([]string(nil), c.GetCommand()...), c.GetArgs()...)
}

func environment(c *runtimeapi.ContainerConfig) []string {
	var env []string
	for _, e := range c.GetEnvs() {
		env = append(env, e.Key+"="+string(e.Value))
	}
	return env
}

// writers writes to both, even if the first one fails.
type writers [2]io.Writer

func (w writers) Write(b []byte) (int, error) {
	for _, to := range w {
		if to != nil {
			_, _ = to.Write(b)
		}
	}
	return len(b), nil
}

// fanOut copies a container's output to the attached clients.
type fanOut struct {
	mu      sync.Mutex
	clients map[*client]bool
	closed  bool
}

type client struct {
	stdout, stderr io.Writer
	gone           chan struct{} // closed when the container has exited
}

type fanStream struct {
	f      *fanOut
	stdout bool
}

func (f *fanOut) stream(name string) io.Writer { return fanStream{f, name == "stdout"} }

func (s fanStream) Write(b []byte) (int, error) {
	s.f.mu.Lock()
	defer s.f.mu.Unlock()
	for c := range s.f.clients {
		if to := c.stderr; !s.stdout && to != nil {
			_, _ = to.Write(b)
		}
		if to := c.stdout; s.stdout && to != nil {
			_, _ = to.Write(b)
		}
	}
	return len(b), nil
}

// add attaches a client until leave is called; the client's gone is closed at the end of all
// output.
func (f *fanOut) add(c *client) (leave func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		close(c.gone)
		return func() {}
	}
	if f.clients == nil {
		f.clients = map[*client]bool{}
	}
	f.clients[c] = true
	return func() { f.mu.Lock(); defer f.mu.Unlock(); delete(f.clients, c) }
}

func (f *fanOut) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for c := range f.clients {
		close(c.gone)
	}
	f.clients = nil
}

// stdinPipe is the stdin of a container; with once it ends with the first client.
type stdinPipe struct {
	*io.PipeReader
	w    *io.PipeWriter
	once bool
}

func newStdinPipe(once bool) *stdinPipe {
	r, w := io.Pipe()
	return &stdinPipe{r, w, once}
}

func (p *stdinPipe) close() { _ = p.PipeReader.Close(); _ = p.w.Close() }
