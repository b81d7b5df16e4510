// Package testmachine runs a containerd of any version like a host of its own: in PID, mount and
// network namespaces, with its own root, state, socket, CNI network and registry. It installs
// nothing and leaves nothing behind. It needs root, runc and the CNI plugins of
// containernetworking-plugins.
//
// A test binary that uses it must first call Main in its TestMain: the machine's first process is
// another instance of the test binary.
package testmachine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config configures a Machine.
type Config struct {
	Dir        string // work directory of the socket, absolute and short; removed by Close
	Containerd string // path of the containerd binary
	ShimDir    string // directory of containerd-shim-runc-v2
	CNIDir     string // directory of the CNI plugins
	Image      []byte // static binary of the test images
}

// registryAddress is the registry's address in the machine's own network.
const registryAddress = "127.0.0.1:5000"

// Machine is a running containerd.
type Machine struct {
	Socket string // path of its socket
	Image  string // reference of the test image
	config Config
	init   *exec.Cmd
	stdin  io.Closer
	netns  *os.File
}

// Start starts the machine and returns when containerd listens.
func Start(ctx context.Context, c Config) (*Machine, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("testmachine: root is needed")
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := os.WriteFile(filepath.Join(c.Dir, "image"), c.Image, 0o755); err != nil {
		return nil, err
	}
	m := &Machine{Socket: filepath.Join(c.Dir, "cri.sock"), Image: registryAddress + "/" + ImageName, config: c}
	if err := writeConfigs(c, m.Socket); err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	m.init = exec.Command(self)
	m.init.Env = append(os.Environ(), envDir+"="+c.Dir, envContainerd+"="+c.Containerd,
		"PATH="+c.ShimDir+":"+os.Getenv("PATH"))
	m.init.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWPID,
	}
	m.init.Stderr = os.Stderr
	// The machine ends when this pipe closes: at Close, or when this process ends.
	if m.stdin, err = m.init.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := m.init.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := m.init.Start(); err != nil {
		return nil, fmt.Errorf("start the machine: %w", err)
	}
	ready := make(chan error, 1)
	go func() {
		line, err := bufio.NewReader(stdout).ReadString('\n')
		if err == nil && line != "ready\n" {
			err = errors.New(strings.TrimSpace(line))
		}
		ready <- err
	}()
	select {
	case err = <-ready:
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err == nil {
		m.netns, err = os.Open(fmt.Sprintf("/proc/%d/ns/net", m.init.Process.Pid))
	}
	if err != nil {
		log, _ := os.ReadFile(filepath.Join(c.Dir, "containerd.log"))
		_ = m.Close()
		return nil, fmt.Errorf("the machine did not come up: %w\n%s", err, log)
	}
	return m, nil
}

// Close ends every process of the machine, and with them its namespaces and mounts. It removes its
// directory and its cgroups.
func (m *Machine) Close() error {
	_ = m.stdin.Close()
	_ = m.init.Process.Kill()
	_ = m.init.Wait()
	if m.netns != nil {
		_ = m.netns.Close()
	}
	removeCgroups(m.CgroupParent())
	var err error
	// The kernel releases the last mounts a moment after the last process has ended.
	for deadline := time.Now().Add(10 * time.Second); ; <-time.After(50 * time.Millisecond) {
		if err = os.RemoveAll(m.config.Dir); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// CgroupParent returns the cgroup parent for this machine's sandboxes.
func (m *Machine) CgroupParent() string { return "/bowline-" + filepath.Base(m.config.Dir) }

// removeCgroups removes a cgroup and all cgroups below it, under every controller.
func removeCgroups(parent string) {
	roots, _ := filepath.Glob("/sys/fs/cgroup/*" + parent)
	roots = append(roots, "/sys/fs/cgroup"+parent)
	for _, root := range roots {
		var dirs []string
		_ = filepath.WalkDir(root, func(p string, d os.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil
		})
		for i := len(dirs) - 1; i >= 0; i-- {
			_ = syscall.Rmdir(dirs[i])
		}
	}
}

// Dial dials in the machine's network.
func (m *Machine) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	if network == "unix" {
		var d net.Dialer
		return d.DialContext(ctx, network, address)
	}
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result, 1)
	go func() {
		// Never unlock the thread: it is discarded, together with its namespace.
		runtime.LockOSThread()
		if err := unix.Setns(int(m.netns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{nil, err}
			return
		}
		// One address at a time, so that this thread creates the socket.
		d := net.Dialer{FallbackDelay: -1}
		c, err := d.DialContext(ctx, network, address)
		done <- result{c, err}
	}()
	r := <-done
	return r.c, r.err
}

func writeConfigs(c Config, socket string) error {
	restrict := !mayLowerOOMScore()
	// Both containerd 1.6 and 2 read version 2 of the configuration.
	toml := fmt.Sprintf(`version = 2
root = %q
state = "/run/containerd"
[grpc]
  address = %q
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %q
  restrict_oom_score_adj = %v
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %q
    conf_dir = %q
  [plugins."io.containerd.grpc.v1.cri".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
`, filepath.Join(c.Dir, "root"), socket, registryAddress+"/"+PauseName, restrict, c.CNIDir, filepath.Join(c.Dir, "cni"))
	if err := os.WriteFile(filepath.Join(c.Dir, "containerd.toml"), []byte(toml), 0o644); err != nil {
		return err
	}
	const cni = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "ptp", "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}]], "dataDir": "/run/cni-ipam"}}]}`
	if err := os.MkdirAll(filepath.Join(c.Dir, "cni"), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.Dir, "cni", "10-pods.conflist"), []byte(cni), 0o644)
}

// mayLowerOOMScore reports whether we have CAP_SYS_RESOURCE: without it, runc fails on a negative
// score.
func mayLowerOOMScore() bool {
	v, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, unix.CAP_SYS_RESOURCE, 0, 0, 0)
	return err == nil && v == 1
}
