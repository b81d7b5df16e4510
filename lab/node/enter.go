package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/lab/cgroups"
	"github.com/bowline-k8s/bowline/lab/proc"
)

// namespaces are the namespaces of a lab host in the order in which they are entered. mnt is last,
// because paths change their meaning with the mount namespace.
var namespaces = []string{"cgroup", "uts", "net", "mnt"}

// Enter moves the calling process into a cgroup, if one is named, and into the namespaces of
// process pid, if it is not 0, and executes the command there. It returns only on failure. The
// working directory is kept if it exists there. A daemon keeps only its first three descriptors.
func Enter(cgroup string, pid int, daemon bool, argv, env []string) error {
	runtime.LockOSThread()
	if cgroup != "" {
		if err := cgroups.Join(cgroup); err != nil {
			return err
		}
	}
	if daemon {
		var err error
		if env, err = proc.Register(argv, env); err != nil {
			return err
		}
		if err := proc.KeepNothing(); err != nil {
			return err
		}
	}
	if pid != 0 {
		if err := enterNamespaces(pid); err != nil {
			return err
		}
	}
	program, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", program, syscall.Exec(program, argv, env))
}

func enterNamespaces(pid int) error {
	directory, dirErr := os.Getwd()
	var fds []int
	for _, ns := range namespaces {
		fd, err := unix.Open(fmt.Sprintf("/proc/%d/ns/%s", pid, ns), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open the %s namespace of process %d: %w", ns, pid, err)
		}
		fds = append(fds, fd)
	}
	// A thread can change its mount namespace only if it shares its root and working directory with
	// no other thread.
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the working directory: %w", err)
	}
	for i, ns := range namespaces {
		if err := unix.Setns(fds[i], 0); err != nil {
			return fmt.Errorf("enter the %s namespace of process %d: %w", ns, pid, err)
		}
	}
	if dirErr == nil {
		_ = os.Chdir(directory) // it may be hidden in there; then the directory is /
	}
	return nil
}

// identity returns the namespaces of a process, as the links below /proc/PID/ns show them.
func identity(pid int) (map[string]string, error) {
	ids := map[string]string{}
	for _, ns := range namespaces {
		link, err := os.Readlink(filepath.Join("/proc", fmt.Sprint(pid), "ns", ns))
		if err != nil {
			return nil, err
		}
		ids[ns] = link
	}
	return ids, nil
}
