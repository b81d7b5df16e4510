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

// endPatience is how long a program may take to end by the end of its input.
const endPatience = 2 * time.Second

// Start gives the program a process group of its own. It ends with us, as its input
// does.
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
	// A pipe of our own: Wait would close one of the command's under its reader.
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
		_ = cmd.Wait() // its output has said what there was to say
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

// Close ends the input, and kills what does not end by that.
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
