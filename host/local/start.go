package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/host"
)

// endPatience is how long a program may take to end after its input was closed.
const endPatience = 2 * time.Second

// Start runs the program in a process group of its own. When this process ends, so does its
// input, and with that the program.
func (h *Host) Start(ctx context.Context, args ...string) (host.Process, error) {
	if len(args) == 0 {
		return nil, errors.New("start: no command")
	}
	return call(h, ctx, "Start", shortDeadline, func(context.Context) (host.Process, error) {
		return start(args)
	})
}

func start(args []string) (*process, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	// A pipe of our own: Wait would close one of exec.Cmd while it is being read.
	out, theirs, err := os.Pipe()
	if err != nil {
		in.Close()
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	cmd.Stdout, cmd.Stderr = theirs, theirs
	err = cmd.Start()
	theirs.Close()
	if err != nil {
		in.Close()
		out.Close()
		return nil, fmt.Errorf("start %s: %w", args[0], err)
	}
	p := &process{in: in, out: out, pid: cmd.Process.Pid, ended: make(chan struct{})}
	go func() {
		defer close(p.ended)
		_ = cmd.Wait() // the reader of its output has the reason
	}()
	return p, nil
}

type process struct {
	in    io.WriteCloser
	out   *os.File
	pid   int
	ended chan struct{}
	once  sync.Once
}

func (p *process) Read(b []byte) (int, error)  { return p.out.Read(b) }
func (p *process) Write(b []byte) (int, error) { return p.in.Write(b) }

// Close closes the input, and kills the program if that does not end it.
func (p *process) Close() error {
	p.once.Do(func() {
		p.in.Close()
		t := time.NewTimer(endPatience)
		defer t.Stop()
		select {
		case <-p.ended:
		case <-t.C:
			_ = unix.Kill(-p.pid, unix.SIGKILL)
			<-p.ended
		}
		p.out.Close()
	})
	return nil
}
