package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	// podRootFD is the descriptor by which a process that has joined a runtime sees what
	// its pod has mounted: high, as the low ones are the Go runtime's.
	podRootFD = 100
	// podMountsFD keeps the pod's mounts: with the last process of a mount namespace they
	// would come off its root.
	podMountsFD = 101
	// joinedEnv marks such a process.
	joinedEnv = "BOWLINE_JOINED"
	// serviceAccountDir is where a pod has its account's token.
	serviceAccountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
	// accountFile is where join writes how to come to the API server with it.
	accountFile = "/var/lib/bowline/account.kubeconfig"
)

// podRoot is the pod's own root directory for who has joined a runtime.
var podRoot = fmt.Sprintf("/proc/self/fd/%d", podRootFD)

func joinCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "join SOCKET -- COMMAND...",
		Short: "Run another command of this program among the files of who serves a socket",
		Long: fmt.Sprintf(`Run another command of this program in the mount namespace of the process that serves a
unix socket: that of a container runtime, whose machine it then sees as the runtime does,
its files, its mounts and its programs. It is for a pod on that machine, which has to be
privileged, with hostPID, and to have the socket's directory mounted.

What the pod itself has mounted is below %[1]s then. In a pod with a service account,
%[2]s is written before, with which the command comes to the API server as
that account: --kubeconfig %[1]s%[2]s.`, podRoot, accountFile),
		Example: `  bowline join /run/containerd-two/containerd.sock -- run --config ` + podRoot + `/etc/bowline/config.yaml`,
		Hidden:  true, // a pod's command is the chart's to write
		Args: func(c *cobra.Command, args []string) error {
			if len(args) >= 2 {
				return nil
			}
			return missing(c, []string{"SOCKET", "COMMAND"}[len(args):])
		},
		RunE: func(c *cobra.Command, args []string) error {
			if c.ArgsLenAtDash() != 1 {
				return errors.New("write -- between the socket and the command")
			}
			ctx, cancel := context.WithTimeout(c.Context(), 10*time.Second)
			defer cancel()
			pid, err := servedBy(ctx, args[0])
			if err != nil {
				return err
			}
			if err := writeAccount(serviceAccountDir, accountFile, os.Getenv); err != nil {
				return err
			}
			return joinMounts(pid, args[1:])
		},
	}
	return c
}

// servedBy is the process that listens on a unix socket.
func servedBy(ctx context.Context, socket string) (int, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, fmt.Errorf("%w: does the runtime run, and is the directory of its socket mounted?", err)
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
		return 0, fmt.Errorf("who serves %s: %w", socket, errors.Join(err, peerErr))
	case peer.Pid == 0:
		return 0, fmt.Errorf("who serves %s is not to be seen from here: the pod needs hostPID", socket)
	}
	return int(peer.Pid), nil
}

// writeAccount writes a kubeconfig of the pod's service account, whose token is read anew
// as it is renewed. Nothing is written outside of a pod.
func writeAccount(dir, file string, env func(string) string) error {
	host, port := env("KUBERNETES_SERVICE_HOST"), env("KUBERNETES_SERVICE_PORT")
	if _, err := os.Stat(filepath.Join(dir, "token")); errors.Is(err, fs.ErrNotExist) || host == "" || port == "" {
		return nil
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["cluster"] = &clientcmdapi.Cluster{Server: "https://" + net.JoinHostPort(host, port), CertificateAuthority: podRoot + dir + "/ca.crt"}
	config.AuthInfos["account"] = &clientcmdapi.AuthInfo{TokenFile: podRoot + dir + "/token"}
	config.Contexts["pod"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "account"}
	config.CurrentContext = "pod"
	if err := clientcmd.WriteToFile(*config, file); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

// joinMounts becomes this program anew, with other arguments, in the mount namespace of a
// process. It returns only if that fails.
func joinMounts(pid int, args []string) error {
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
		return fmt.Errorf("open the mount namespace of process %d: %w: the pod has to be privileged, with hostPID", pid, err)
	}
	// The mount namespace can only be changed by a thread that shares its root and working
	// directory with no other; it is this one that becomes the program.
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("unshare the working directory: %w", err)
	}
	if err := unix.Setns(mounts, unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("enter the mount namespace of process %d: %w: the pod has to be privileged", pid, err)
	}
	if err := unix.Chdir("/"); err != nil {
		return err
	}
	env := append(os.Environ(), joinedEnv+"=1")
	return fmt.Errorf("start again among the files of process %d: %w", pid, unix.Exec("/proc/self/exe", append([]string{"bowline"}, args...), env))
}

// afterJoin keeps the pod's root from the programs that this one starts.
func afterJoin() {
	if os.Getenv(joinedEnv) != "" {
		unix.CloseOnExec(podRootFD)
		unix.CloseOnExec(podMountsFD)
		_ = os.Unsetenv(joinedEnv)
	}
}
