// Package shims ends shims of containerd's that nobody knows any more.
//
// When the caller of a RunPodSandbox goes away just while its shim is being
// started, containerd gives the start up and forgets the shim. That one has no
// container and never gets one; most often it waits for ever for somebody to read
// its log, and does not even answer on its socket. Neither the CRI nor
// containerd's own services can name it, but its socket can be found.
package shims

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
)

const (
	// SocketDir is where containerd's shims listen unless it is told otherwise.
	SocketDir = "/run/containerd/s"
	// namespace of the CRI's containers.
	namespace = "k8s.io"
	// patience with a kill.
	patience = 10 * time.Second
)

// Machine is what is needed of a machine; host.Host has it.
type Machine interface {
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	Remove(ctx context.Context, path string) error
	Run(ctx context.Context, c host.Command) (host.Result, error)
}

// Runtime is what is needed of the runtime; cri.Client has it.
type Runtime interface {
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	// HasRecord tells whether containerd has a container of this ID.
	HasRecord(ctx context.Context, id string) (bool, error)
}

// Reaper ends stray shims of one machine.
type Reaper struct {
	Machine Machine
	Runtime Runtime
	// Address is containerd's own socket, a path.
	Address string
}

// Result of one look.
type Result struct {
	// Ended are the IDs of the shims that were ended.
	Ended []string
	// Starting shims have a record in containerd and no sandbox: they come or go.
	// Look again.
	Starting int
}

// Reap looks once. Only a shim of the CRI's namespace goes, whose sandbox neither
// the CRI nor containerd itself has: the record of a sandbox is made before its
// shim is started, and no two have one ID, so nobody will come for it.
func (r *Reaper) Reap(ctx context.Context) (Result, error) {
	var result Result
	unknown, err := r.unknownSockets(ctx)
	if err != nil {
		return result, fmt.Errorf("look for stray shims: %w", err)
	}
	if len(unknown) == 0 {
		return result, nil
	}
	processes, err := r.Machine.List(ctx, "/proc")
	if err != nil {
		return result, fmt.Errorf("look for stray shims: %w", err)
	}
	var faults []error
	for _, p := range processes {
		pid, err := strconv.Atoi(p.Name)
		if err != nil {
			continue
		}
		if err := r.reap(ctx, pid, unknown, &result); err != nil {
			faults = append(faults, fmt.Errorf("shim of containerd with process ID %d: %w", pid, err))
		}
	}
	return result, errors.Join(faults...)
}

// unknownSockets are the names of those sockets that belong to no sandbox of the
// CRI; they may be another client's.
func (r *Reaper) unknownSockets(ctx context.Context) (map[string]bool, error) {
	files, err := r.Machine.List(ctx, SocketDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // another runtime, or another place
	}
	if err != nil {
		return nil, err
	}
	// Listed after the sockets: one that is started meanwhile is not among them.
	sandboxes, err := r.Runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, err
	}
	unknown := map[string]bool{}
	for _, f := range files {
		unknown[f.Name] = true
	}
	for _, s := range sandboxes {
		delete(unknown, socketName(r.Address, s.Id))
	}
	return unknown, nil
}

// reap ends the process if it is a stray shim.
func (r *Reaper) reap(ctx context.Context, pid int, unknown map[string]bool, result *Result) error {
	a, err := r.args(ctx, pid)
	// One of another containerd on this machine has its socket in the same directory.
	if err != nil || !a.isShim() || a.address != r.Address || !unknown[socketName(a.address, a.id)] {
		return err
	}
	has, err := r.Runtime.HasRecord(ctx, a.id)
	if err != nil {
		return err
	}
	if has {
		result.Starting++
		return nil
	}
	// Once more, so that the process is still that one.
	if again, err := r.args(ctx, pid); err != nil || again != a {
		return err
	}
	out, err := r.Machine.Run(ctx, host.Command{Args: []string{"kill", "-KILL", strconv.Itoa(pid)}, Timeout: patience})
	if err != nil {
		return err
	}
	if out.ExitCode != 0 {
		return fmt.Errorf("kill it: %s", strings.TrimSpace(string(out.Stderr)))
	}
	result.Ended = append(result.Ended, a.id)
	if err := r.Machine.Remove(ctx, path.Join(SocketDir, socketName(a.address, a.id))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// args of a process; none of one that has ended.
func (r *Reaper) args(ctx context.Context, pid int) (args, error) {
	cmdline, err := r.Machine.ReadFile(ctx, fmt.Sprintf("/proc/%d/cmdline", pid), 64<<10)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, host.ErrTooLarge) {
		return args{}, nil
	}
	return parseArgs(cmdline), err
}

// socketName is the name of the socket of the shim of a sandbox, as containerd
// 1.6 and 2 make it.
func socketName(address, id string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(path.Join(address, namespace, id))))
}

// args are those of a shim's arguments that matter here.
type args struct{ program, namespace, id, address string }

// isShim tells whether it is a shim of the CRI's namespace, which has a socket.
func (a args) isShim() bool {
	return strings.HasPrefix(path.Base(a.program), "containerd-shim-") && a.namespace == namespace && a.id != "" && a.address != ""
}

// parseArgs reads /proc/PID/cmdline.
func parseArgs(cmdline []byte) args {
	var a args
	words := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	a.program = words[0]
	for i := 1; i+1 < len(words); i++ {
		switch strings.TrimLeft(words[i], "-") {
		case "namespace":
			a.namespace = words[i+1]
		case "id":
			a.id = words[i+1]
		case "address":
			a.address = words[i+1]
		}
	}
	return a
}
