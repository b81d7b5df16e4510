// Package mountns executes this program in the mount namespace of a container runtime, from a pod on
// the same host.
package mountns

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/bowline-k8s/bowline/hint"
)

const (
	// podRootFD is the file descriptor of the pod's own root directory in a process that has joined
	// a runtime's mount namespace. The number is high because the Go runtime uses the low ones.
	podRootFD = 100
	// podMountsFD keeps the pod's mount namespace: its mounts would be detached with the last
	// process in it.
	podMountsFD = 101
	// joinedEnv marks a process that has joined.
	joinedEnv = "BOWLINE_JOINED"
	// ServiceAccountDir is where a pod finds its service account's token.
	ServiceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	// AccountFile is where join writes a kubeconfig of that service account.
	AccountFile = "/var/lib/bowline/account.kubeconfig"
)

// PodRoot is the path of the pod's own root directory in a process that has joined.
var PodRoot = fmt.Sprintf("/proc/self/fd/%d", podRootFD)

// ServedBy returns the PID of the process that listens on a unix socket.
func ServedBy(ctx context.Context, socket string) (int, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, hint.Add(err, "check that the runtime runs, and that the directory of its socket is mounted")
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	switch {
	case err != nil || peerErr != nil:
		return 0, fmt.Errorf("find the process that serves %s: %w", socket, errors.Join(err, peerErr))
	case peer.Pid == 0:
		return 0, hint.Add(fmt.Errorf("cannot see the process that serves %s", socket), "set hostPID in the pod")
	}
	return int(peer.Pid), nil
}

// WriteAccount writes a kubeconfig of the pod's service account. It names the token's file, so that
// a renewed token is read. Outside of a pod it writes nothing.
func WriteAccount(dir, file string, env func(string) string) error {
	host, port := env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")
	if _, err := os.Stat(filepath.Join(dir, "token")); errors.Is(err, fs.ErrNotExist) || host == "" || port == "" {
		return nil
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{Server: "https://" + net.JoinHostPort(host, port), CertificateAuthority: PodRoot + dir + "/ca.crt"}
	config.AuthInfos["account"] = &clientcmdapi.AuthInfo{TokenFile: PodRoot + dir + "/token"}
	config.Contexts["pod"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "account"}
	config.CurrentContext = "pod"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// Exec executes this program again, with other arguments, in the mount namespace of process
// pid. It returns only on failure.
func Exec(pid int, args []string) error {
	for fd, path := range map[int]string{podRootFD: "/", podMountsFD: "/proc/self/ns/mnt"} {
		opened, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("open the pod's own %s: %w", path, err)
		}
		if err := unix.Dup3(opened, fd, 0); err != nil {
			return fmt.Errorf("keep the pod's own %s: %w", path, err)
		}
	}
	mounts, err := unix.Open(fmt.Sprintf("/proc/%d/ns/mnt", pid), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return hint.Add(fmt.Errorf("open the mount namespace of process %d: %w", pid, err), "make the pod privileged, and set hostPID in it")
	}
	// The kernel lets a thread change its mount namespace only if it shares its root and working
	// directory with no other thread. This thread does that and becomes the new program.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the working directory: %w", err)
	}
	if err := unix.Setns(mounts, unix.CLONE_NEWNS); err != nil {
		return hint.Add(fmt.Errorf("enter the mount namespace of process %d: %w", pid, err), "make the pod privileged")
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	env := append(os.Environ(), joinedEnv+"=1")
	return fmt.Errorf("start again in the mount namespace of process %d: %w", pid, unix.Exec("/proc/self/exe", append([]string{"bowline"}, args...), env))
}

// AfterExec keeps the pod's root from being inherited by programs that this one starts.
func AfterExec() {
	if os.Getenv(joinedEnv) != "" {
		unix.CloseOnExec(podRootFD)
		unix.CloseOnExec(podMountsFD)
		_ = os.Unsetenv(joinedEnv)
	}
}
