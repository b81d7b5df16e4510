package fake

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	apievents "github.com/containerd/containerd/api/events"
)

func (s *runtimeServer) ExecSync(ctx context.Context, req *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	c, err := s.r.running(req.ContainerId)
	if err != nil {
		return nil, status.Errorf(status.Code(err), "failed to exec in container: %v", status.Convert(err).Message())
	}
	var stdout, stderr bytes.Buffer
	limit := time.Duration(req.Timeout) * time.Second
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errExecTime)
		defer cancel()
	}
	code, err := s.r.exec(ctx, c, req.Cmd, nil, &stdout, &stderr)
	if context.Cause(ctx) == errExecTime {
		return nil, status.Errorf(codes.DeadlineExceeded, "failed to exec in container: timeout %v exceeded: context deadline exceeded", limit)
	}
	if err != nil {
		return nil, err
	}
	return &runtimeapi.ExecSyncResponse{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), ExitCode: code}, nil
}

var errExecTime = status.Error(codes.DeadlineExceeded, "exec time-out")

// exec runs a command in a container until it exits; the end of the container ends it too.
func (r *Runtime) exec(ctx context.Context, c *container, cmd []string, stdin io.Reader, stdout, stderr io.Writer) (int32, error) {
	run := DefaultProgram
	if r.config.Programs != nil {
		if p := r.config.Programs(c.config); p != nil {
			run = p
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stopLife := context.AfterFunc(r.life, cancel)
	defer stopLife()
	p := &Process{Config: c.config, Sandbox: c.sandbox.config, ContainerID: c.id, Exec: true, Args: cmd,
		Env: environment(c.config), Stdin: stdin, Stdout: stdout, Stderr: stderr, r: r, sandbox: c.sandbox, program: c.program}
	r.mu.Lock()
	e := c.entry(OpExec)
	e.Detail = strings.Join(cmd, " ")
	r.note(e)
	r.mu.Unlock()
	done := make(chan int32, 1)
	r.wg.Add(1)
	go func() { defer r.wg.Done(); done <- int32(run(ctx, p)) }()
	var code int32
	select {
	case code = <-done:
	case <-c.exited:
		cancel()
		<-done
		code = 137
	}
	if ctx.Err() != nil && code != 137 {
		return 0, status.FromContextError(ctx.Err()).Err()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// As in a real runtime, the exit of an exec is a task exit with its own ID.
	r.publish("/tasks/exit", &apievents.TaskExit{ContainerID: c.id, ID: newID(), Pid: 2, ExitStatus: uint32(code)})
	return code, nil
}

func (s *runtimeServer) Exec(_ context.Context, req *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	if _, err := s.r.running(req.ContainerId); err != nil {
		return nil, err
	}
	return s.r.streams.GetExec(req)
}

func (s *runtimeServer) Attach(_ context.Context, req *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	if _, err := s.r.running(req.ContainerId); err != nil {
		return nil, err
	}
	return s.r.streams.GetAttach(req)
}

func (s *runtimeServer) PortForward(_ context.Context, req *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	s.r.mu.Lock()
	sb, ok := find(s.r.sandboxes, req.PodSandboxId)
	s.r.mu.Unlock()
	if !ok {
		return nil, noSandbox(req.PodSandboxId)
	}
	if !sb.ready {
		return nil, status.Errorf(codes.Unknown, "sandbox container %q is not running", sb.id)
	}
	return s.r.streams.GetPortForward(req)
}

// streamRuntime is the Runtime as the streaming server calls it.
type streamRuntime Runtime

func (s *streamRuntime) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	r := (*Runtime)(s)
	c, err := r.running(id)
	if err != nil {
		return err
	}
	stop := drainResize(ctx, resize)
	defer stop()
	stdout, stderr := discardNil(out), discardNil(errs)
	code, err := r.exec(ctx, c, cmd, in, stdout, stderr)
	if err != nil {
		return err
	}
	if code != 0 {
		return &utilexec.CodeExitError{Err: fmt.Errorf("error executing command %v, exit code %d", cmd, code), Code: int(code)}
	}
	return nil
}

func (s *streamRuntime) Attach(ctx context.Context, id string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	r := (*Runtime)(s)
	c, err := r.running(id)
	if err != nil {
		return err
	}
	stop := drainResize(ctx, resize)
	defer stop()
	me := &client{gone: make(chan struct{})}
	if out != nil {
		me.stdout = out
	}
	if errs != nil {
		me.stderr = errs
	}
	defer c.out.add(me)()
	// Only after attaching the output: the program may answer the input at once.
	if in != nil && c.stdin != nil {
		r.wg.Add(1)
		go func() {
			defer r.wg.Done()
			_, _ = io.Copy(c.stdin.w, in)
			if c.stdin.once {
				_ = c.stdin.w.Close()
			}
		}()
	}
	select {
	case <-me.gone:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *streamRuntime) PortForward(ctx context.Context, sandboxID string, port int32, stream io.ReadWriteCloser) error {
	r := (*Runtime)(s)
	defer stream.Close()
	r.mu.Lock()
	var l net.Listener
	if sb, ok := find(r.sandboxes, sandboxID); ok {
		l = sb.listeners[int(port)]
	}
	r.mu.Unlock()
	if l == nil {
		return fmt.Errorf("failed to dial port %d in the sandbox: connection refused", port)
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", l.Addr().String())
	if err != nil {
		return err
	}
	defer conn.Close()
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		_, _ = io.Copy(conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite()
	}()
	_, err = io.Copy(stream, conn)
	return err
}

// drainResize reads the terminal's sizes until stop is called.
func drainResize(ctx context.Context, resize <-chan remotecommand.TerminalSize) (stop func()) {
	if resize == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case _, ok := <-resize:
				if !ok {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() { cancel(); <-done }
}

func discardNil(w io.WriteCloser) io.Writer {
	if w == nil {
		return io.Discard
	}
	return w
}
