// Package shims kills orphaned containerd shims, which containerd itself has forgotten.
//
// If the caller of a RunPodSandbox goes away just while the shim is starting, containerd abandons
// the start and forgets the shim. That shim never gets a container. Usually it waits forever for a
// reader of its log, and does not even answer on its socket. Neither the CRI nor containerd's own
// services can name it, but its socket can be found.
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
	// SocketDir is where containerd's shims listen by default.
	SocketDir = "/run/containerd/s"
	// namespace of the CRI's containers.
	namespace = "k8s.io"
	// patience is the timeout of the kill command.
	patience = 10 * time.Second
)

// Machine is the part of host.Host that a Reaper needs.
type Machine interface {
	List(ctx context.Context, dir string) ([]host.FileInfo, error)
	ReadFile(ctx context.Context, path string, max int64) ([]byte, error)
	Remove(ctx context.Context, path string) error
	Run(ctx context.Context, c host.Command) (host.Result, error)
}

// Runtime is the part of cri.Client that a Reaper needs.
type Runtime interface {
	ListPodSandbox(ctx context.Context, filter *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error)
	// HasRecord reports whether containerd has a container or a sandbox of this ID.
	HasRecord(ctx context.Context, id string) (bool, error)
}

// Reaper kills orphaned shims on one host.
type Reaper struct {
	Machine Machine
	Runtime Runtime
	// Address is the path of containerd's own socket.
	Address string
}

// Result is the result of one Reap.
type Result struct {
	// Ended are the IDs of the killed shims.
	Ended []string
	// Starting counts shims with a record in containerd but no sandbox: they are starting or
	// stopping. Call Reap again.
	Starting int
}

// Reap looks for orphaned shims once. It kills a shim of the CRI's namespace only if neither the CRI
// nor containerd itself has its sandbox. That is safe: containerd creates the record of a sandbox
// before it starts the shim, and IDs are unique, so nothing will use that shim.
func (r *Reaper) Reap(ctx context.Context) (Result, error) {
	var result Result
	unknown, err := r.unknownSockets(ctx)
	if err != nil {
		return result, fmt.Errorf("look for orphaned shims: %w", err)
	}
	if len(unknown) == 0 {
		return result, nil
	}
	processes, err := r.Machine.List(ctx, "/proc")
	if err != nil {
		return result, fmt.Errorf("look for orphaned shims: %w", err)
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

// unknownSockets returns the names of the sockets that belong to no sandbox of the CRI. They may
// belong to another client of containerd.
func (r *Reaper) unknownSockets(ctx context.Context) (map[string]bool, error) {
	files, err := r.Machine.List(ctx, SocketDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // another runtime, or another directory
	}
	if err != nil {
		return nil, err
	}
	// List sandboxes after the sockets: a socket that is created meanwhile is not in files.
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

// reap kills the process if it is an orphaned shim.
func (r *Reaper) reap(ctx context.Context, pid int, unknown map[string]bool, result *Result) error {
	a, err := r.args(ctx, pid)
	// The shims of another containerd on this host use the same socket directory.
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
	// Read them again, to be sure that the PID still belongs to that process.
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

// args returns the arguments of a process; empty if it has ended.
func (r *Reaper) args(ctx context.Context, pid int) (args, error) {
	cmdline, err := r.Machine.ReadFile(ctx, fmt.Sprintf("/proc/%d/cmdline", pid), 64<<10)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) || errors.Is(err, host.ErrTooLarge) {
		return args{}, nil
	}
	return parseArgs(cmdline), err
}

// socketName returns the name of the socket of a sandbox's shim, as containerd 1.6 and 2 form it.
func socketName(address, id string) string {
	return fmt.Sprintf("%x", sha256.Sum256([]byte(path.Join(address, namespace, id))))
}

// args are the relevant arguments of a shim.
type args struct{ program, namespace, id, address string }

// isShim reports whether it is a shim of the CRI's namespace with a socket.
func (a args) isShim() bool {
	return strings.HasPrefix(path.Base(a.program), "containerd-shim-") && a.namespace == namespace && a.id != "" && a.address != ""
}

// parseArgs parses /proc/PID/cmdline.
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
