package fake

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	apievents "github.com/containerd/containerd/api/events"
)

func (s *runtimeServer) StartContainer(ctx context.Context, req *runtimeapi.StartContainerRequest) (*runtimeapi.StartContainerResponse, error) {
	r := s.r
	aborted := r.faults.within(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	c, ok := find(r.containers, req.ContainerId)
	if !ok {
		return nil, noContainer(req.ContainerId)
	}
	if c.state != runtimeapi.ContainerState_CONTAINER_CREATED {
		return nil, status.Errorf(codes.Unknown, "failed to set starting state for container %q: container is in %s state", c.id, c.state)
	}
	if !c.sandbox.ready {
		return nil, status.Errorf(codes.Unknown, "sandbox container %q is not running", c.sandbox.id)
	}
	err := aborted
	if err == nil {
		err = r.start(c)
	}
	if err != nil {
		now := r.now()
		c.state, c.code, c.reason, c.message = runtimeapi.ContainerState_CONTAINER_EXITED, 128, "StartError", err.Error()
		c.started, c.finished = time.Unix(0, 0), now
		close(c.exited)
		return nil, status.Errorf(codes.Unknown, "failed to start containerd task %q: %v", c.id, err)
	}
	return &runtimeapi.StartContainerResponse{}, nil
}

// start runs the container's program; the caller holds r.mu.
func (r *Runtime) start(c *container) error {
	run := DefaultProgram
	if r.config.Programs != nil {
		if p := r.config.Programs(c.config); p != nil {
			run = p
		}
	}
	if args := arguments(c.config); len(args) > 0 && c.program && args[0] != "/"+TestImage {
		return fmt.Errorf("exec: %q: stat %s: no such file or directory", args[0], args[0])
	}
	path := c.logPath
	if path != "" {
		path = r.config.Root + path
	}
	log, err := openLog(path, r.now)
	if err != nil {
		return err
	}
	c.log = log
	ctx, kill := context.WithCancel(r.life)
	c.kill = kill
	p := &Process{
		Config: c.config, Sandbox: c.sandbox.config, ContainerID: c.id, Term: c.term,
		Args: arguments(c.config), Env: environment(c.config),
		Stdout: writers{log.stream("stdout"), c.out.stream("stdout")},
		Stderr: writers{log.stream("stderr"), c.out.stream("stderr")},
		r:      r, sandbox: c.sandbox, program: c.program,
	}
	if c.config.Tty {
		p.Stderr = p.Stdout
	}
	if c.stdin != nil {
		p.Stdin = c.stdin
	}
	c.state, c.started = runtimeapi.ContainerState_CONTAINER_RUNNING, r.now()
	r.note(c.entry(OpStart))
	r.publish("/tasks/start", &apievents.TaskStart{ContainerID: c.id, Pid: 1})
	r.wg.Add(1)
	go func() {
		defer r.wg.Done()
		done := make(chan int32, 1)
		r.wg.Add(1)
		go func() { defer r.wg.Done(); done <- int32(run(ctx, p)) }()
		var code int32
		select {
		case code = <-done:
		case code = <-c.forced:
		case <-ctx.Done():
			code = 137
		}
		if ctx.Err() != nil {
			code = 137
		}
		kill()
		r.exit(c, code)
	}()
	return nil
}

// exit records the end of a container's program.
func (r *Runtime) exit(c *container, code int32) {
	c.log.close()
	c.out.close()
	if c.stdin != nil {
		c.stdin.close()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.state, c.code, c.finished = runtimeapi.ContainerState_CONTAINER_EXITED, code, r.now()
	switch {
	case c.oom:
		c.reason = "OOMKilled"
		r.publish("/tasks/oom", &apievents.TaskOOM{ContainerID: c.id})
	case code == 0:
		c.reason = "Completed"
	default:
		c.reason = "Error"
	}
	e := c.entry(OpExit)
	e.Code = code
	r.note(e)
	close(c.exited)
	r.publish("/tasks/exit", &apievents.TaskExit{ContainerID: c.id, ID: c.id, Pid: 1, ExitStatus: uint32(code)})
	r.publish("/tasks/delete", &apievents.TaskDelete{ContainerID: c.id, Pid: 1, ExitStatus: uint32(code)})
}

func (s *runtimeServer) StopContainer(ctx context.Context, req *runtimeapi.StopContainerRequest) (*runtimeapi.StopContainerResponse, error) {
	c, err := s.r.container(req.ContainerId)
	if err != nil {
		return &runtimeapi.StopContainerResponse{}, nil
	}
	if err := s.r.stop(ctx, c, time.Duration(req.Timeout)*time.Second); err != nil {
		return nil, err
	}
	return &runtimeapi.StopContainerResponse{}, nil
}

// stop behaves like containerd's stopContainer: the stop signal is sent once, however often stop is
// called. If the caller goes away during the grace period, there is no SIGKILL.
func (r *Runtime) stop(ctx context.Context, c *container, grace time.Duration) error {
	r.mu.Lock()
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		r.mu.Unlock()
		return nil
	}
	if grace > 0 && !c.termed {
		c.termed = true
		r.note(c.entry(OpTerm))
		c.term <- struct{}{}
	}
	r.mu.Unlock()
	if grace > 0 {
		select {
		case <-c.exited:
			return nil
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case <-time.After(grace):
		}
	}
	r.sigkill(c)
	select {
	case <-c.exited:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

func (r *Runtime) sigkill(c *container) {
	c.killOnce.Do(func() {
		r.mu.Lock()
		r.note(c.entry(OpKill))
		r.mu.Unlock()
		c.kill()
	})
}

// Exit ends a running container with code, as if its program had exited.
func (r *Runtime) Exit(id string, code int32) error {
	c, err := r.running(id)
	if err != nil {
		return err
	}
	select {
	case c.forced <- code:
	default:
	}
	<-c.exited
	return nil
}

// OOMKill ends a running container like the kernel's OOM killer.
func (r *Runtime) OOMKill(id string) error {
	c, err := r.running(id)
	if err != nil {
		return err
	}
	r.mu.Lock()
	c.oom = true
	r.mu.Unlock()
	c.kill()
	<-c.exited
	return nil
}

// Lose puts a container in the state Unknown, as in a runtime that has lost the shim.
func (r *Runtime) Lose(id string) error {
	c, err := r.container(id)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c.state = runtimeapi.ContainerState_CONTAINER_UNKNOWN
	return nil
}

func (r *Runtime) running(id string) (*container, error) {
	c, err := r.container(id)
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if c.state != runtimeapi.ContainerState_CONTAINER_RUNNING {
		return nil, status.Errorf(codes.Unknown, "container is in %s state", c.state)
	}
	return c, nil
}
