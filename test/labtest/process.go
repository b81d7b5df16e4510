package labtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// Process is a program that a test started. The zero value never ran; so did a nil Process.
type Process struct {
	name string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// StartProcess starts cmd and appends its output to the file log. name stands for it in errors. With
// Pdeathsig in cmd's attributes the process ends even if the test is killed: the kernel sends the
// signal when the thread that started the process ends, and that thread waits for the process here.
func StartProcess(name string, cmd *exec.Cmd, log string) (*Process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	cmd.Stdout, cmd.Stderr = file, file
	p := &Process{name: name, cmd: cmd, done: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // how it ended is in cmd.ProcessState
		}
		_ = file.Close()
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, err
	}
	return p, nil
}

// PID is the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Running reports whether it was started and has not ended.
func (p *Process) Running() bool {
	if p == nil || p.done == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.done }

// ExitCode is the exit code of a process that has ended; -1 for a signal.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Wait returns the exit code once the process has ended by itself; -1 for a signal.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.done:
		return p.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s has not ended: %w", p.name, ctx.Err())
	}
}

// Stop sends SIGTERM and waits; after grace it sends SIGKILL and returns an error.
func (p *Process) Stop(grace time.Duration) error {
	if !p.Running() {
		return nil
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
		return nil
	case <-time.After(grace):
		p.End(syscall.SIGKILL)
		return fmt.Errorf("%s did not end on SIGTERM within %s", p.name, grace)
	}
}

// End sends a signal that ends the process, and waits until it has ended.
func (p *Process) End(s syscall.Signal) {
	if p.Running() {
		_ = p.cmd.Process.Signal(s)
		<-p.done
	}
}

// FreeAddress returns an address of loopback on which nothing listens, for a program that takes its
// address from a flag.
func FreeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
