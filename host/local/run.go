package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/internal/machine"
)

const maxOutput = 1 << 20

// Run starts the command in a process group of its own and kills the group at the timeout. If a
// signal ended the command, the exit code is 128 plus the signal, as in a shell.
func (h *Host) Run(ctx context.Context, c host.Command) (host.Result, error) {
	// Not call, because runCommand kills the command at the timeout and waits for it.
	return machine.Run(ctx, h.hook, c, runCommand)
}

func runCommand(ctx context.Context, c host.Command) (host.Result, error) {
	var stdout, stderr limited
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Env = append(os.Environ(), c.Env...)
	cmd.Dir = c.Dir
	cmd.Stdin = bytes.NewReader(c.Stdin)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	// A child that left the group may hold the pipes open; do not wait long for it.
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return host.Result{}, fmt.Errorf("run %s: killed: %w", c.Args[0], ctx.Err())
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) && !errors.Is(err, exec.ErrWaitDelay) {
		return host.Result{}, fmt.Errorf("run %s: %w", c.Args[0], err)
	}
	code := cmd.ProcessState.ExitCode()
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	return host.Result{Stdout: stdout.data, Stderr: stderr.data, ExitCode: code}, nil
}

// limited keeps the first MiB and drops the rest, so that the command never blocks on a full
// pipe.
type limited struct{ data []byte }

func (l *limited) Write(p []byte) (int, error) {
	l.data = append(l.data, p[:min(len(p), maxOutput-len(l.data))]...)
	return len(p), nil
}
