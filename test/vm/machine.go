// Package vm tests on a virtual machine what needs a machine of its own: systemd that manages the
// cgroups, of version 2 and 1, with either cgroup driver of the runtime, and that shuts the machine
// down; an NFS server; disks. hack/vm.sh builds and starts the machine. It is a remote host for a
// Bowline that runs beside a lab, which provides the cluster.
//
// BOWLINE_VM=1 runs the tests ("make vm"). BOWLINE_VM_DIR names a machine that runs already, by the
// directory that hack/vm.sh was given, which is useful while writing a test.
package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// Machine is a running virtual machine.
type Machine struct {
	Dir     string           // the directory that hack/vm.sh was given
	Port    string           // of its sshd, on 127.0.0.1
	Key     string           // file of the private key of root
	HostKey string           // a line as in known_hosts, without the name
	process *labtest.Process // nil for a machine that runs already
}

// script is the path of hack/vm.sh, found from a package below the root of the module.
func script() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil && dir != "/"; dir = filepath.Dir(dir) {
		path := filepath.Join(dir, "hack", "vm.sh")
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", errors.Join(errors.New("there is no hack/vm.sh above this directory"), err)
}

// bootTime is generous: the processor is emulated, and shares this machine with other load.
const bootTime = 15 * time.Minute

// Start boots a machine with this cgroup version and waits for its sshd. It ends with this process
// at the latest.
func Start(ctx context.Context, dir string, cgroups int) (*Machine, error) {
	program, err := script()
	if err != nil {
		return nil, err
	}
	if out, err := exec.CommandContext(ctx, program, "build").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make the virtual machine's image: %w\n%s", err, out)
	}
	free, err := labtest.FreeAddress()
	if err != nil {
		return nil, err
	}
	_, port, _ := net.SplitHostPort(free)
	cmd := exec.Command(program, "run", dir, port)
	cmd.Env = append(os.Environ(), fmt.Sprintf("BOWLINE_VM_CGROUP=%d", cgroups))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := os.Remove(dir + ".log"); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	process, err := labtest.StartProcess("the virtual machine", cmd, dir+".log")
	if err != nil {
		return nil, err
	}
	m := &Machine{Dir: dir, process: process}
	err = labtest.Until(ctx, bootTime, "the virtual machine has booted", func(ctx context.Context) error {
		select {
		case <-process.Ended():
			text, _ := os.ReadFile(dir + ".log")
			return fmt.Errorf("it has ended: %s", text)
		default:
		}
		_, err := m.Run(ctx, "systemctl is-system-running || [ $? = 1 ]")
		return err
	})
	if err == nil {
		err = m.read()
	}
	if err != nil {
		m.Stop()
		return nil, err
	}
	return m, nil
}

// Attach returns a machine that hack/vm.sh has started.
func Attach(dir string) (*Machine, error) {
	m := &Machine{Dir: dir}
	return m, m.read()
}

// read reads the files of hack/vm.sh.
func (m *Machine) read() error {
	data, err := os.ReadFile(filepath.Join(m.Dir, "ssh_config"))
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(data)) {
		switch f := strings.Fields(line); {
		case len(f) != 2:
		case f[0] == "Port":
			m.Port = f[1]
		case f[0] == "IdentityFile":
			m.Key = f[1]
		}
	}
	known, err := os.ReadFile(filepath.Join(m.Dir, "known_hosts"))
	if err != nil {
		return err
	}
	_, m.HostKey, _ = strings.Cut(strings.TrimSpace(string(known)), " ")
	return nil
}

// Stop ends a machine that Start has started.
func (m *Machine) Stop() {
	m.process.End(syscall.SIGKILL)
}

// SSH is a command of OpenSSH's ssh to the machine.
func (m *Machine) SSH(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "ssh", append([]string{"-F", filepath.Join(m.Dir, "ssh_config"), "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "vm"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	return cmd
}

// Run runs a shell script on the machine, as root.
func (m *Machine) Run(ctx context.Context, text string) (string, error) {
	cmd := m.SSH(ctx, "sh", "-s")
	cmd.Stdin = strings.NewReader(text + "\n")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("on the virtual machine: %w: %s%s", err, stdout.String(), stderr.String())
	}
	return strings.TrimSpace(stdout.String()), nil
}

// Write writes a file on the machine.
func (m *Machine) Write(ctx context.Context, path, mode string, content []byte) error {
	cmd := m.SSH(ctx, fmt.Sprintf("mkdir -p '%s' && cat >'%s' && chmod %s '%[2]s'", filepath.Dir(path), path, mode))
	cmd.Stdin = bytes.NewReader(content)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("write %s on the virtual machine: %w: %s", path, err, out)
	}
	return nil
}

// registryPort is the port of the lab's registry on the machine. The machine has no network of its
// own, so ssh forwards the port.
const registryPort = "5000"

const network = `{
  "cniVersion": "1.0.0", "name": "lab",
  "plugins": [{"type": "bridge", "bridge": "cni0", "isGateway": true,
    "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.95.0.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]
}
`

// Containerd starts the lab's containerd on the machine, with the cgroup driver systemd or
// cgroupfs, and forwards the lab's registry to it until ctx ends.
func (m *Machine) Containerd(ctx context.Context, lab *labtest.Lab, driver string) error {
	config := fmt.Sprintf(`version = 3
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "registry.lab/pause:lab"
[plugins.'io.containerd.cri.v1.images'.registry]
  config_path = "/etc/containerd/certs.d"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
  SystemdCgroup = %t
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ["/usr/lib/cni"]
  conf_dir = "/etc/cni/net.d"
`, driver == "systemd")
	for path, content := range map[string]string{
		"/etc/containerd/config.toml":                           config,
		"/etc/containerd/certs.d/registry.lab/hosts.toml":       "[host.\"http://127.0.0.1:" + registryPort + "\"]\n  capabilities = [\"pull\", \"resolve\"]\n",
		"/etc/cni/net.d/10-lab.conflist":                        network,
		"/etc/systemd/journald.conf.d/60-volatile-storage.conf": "[Journal]\nStorage=volatile\n",
	} {
		if err := m.Write(ctx, path, "644", []byte(content)); err != nil {
			return err
		}
	}
	if _, err := m.Run(ctx, "systemctl restart containerd && systemctl is-active containerd"); err != nil {
		return err
	}
	forward := m.SSH(ctx, "-N")
	// Options come before the name of the machine.
	forward.Args = append(forward.Args[:len(forward.Args)-2], "-o", "ExitOnForwardFailure=yes",
		"-R", "127.0.0.1:"+registryPort+":"+lab.Status.Cluster.RegistryAddress, "-N", "vm")
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // the kernel kills it together with the thread that started it
		defer runtime.UnlockOSThread()
		err := forward.Start()
		started <- err
		if err == nil {
			_ = forward.Wait()
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	return labtest.Until(ctx, 2*time.Minute, "the lab's registry can be reached from the machine", func(ctx context.Context) error {
		_, err := m.Run(ctx, "ss -Hltn 'sport = :"+registryPort+"' | grep -q .")
		return err
	})
}

// Endpoint is the endpoint of the machine's containerd, for Bowline.
func (m *Machine) Endpoint() string {
	return "ssh://root@127.0.0.1:" + m.Port + "/run/containerd/containerd.sock"
}

// Config is a configuration of the first node of the lab, with the machine as its host. extra are
// further lines of the host.
func (m *Machine) Config(lab *labtest.Lab, extra ...string) string {
	h := lab.Status.Hosts[0]
	lines := []string{
		"- nodeName: " + h.Name,
		"  kubeconfig: " + h.NodeKubeconfig,
		"  endpoint: " + m.Endpoint(),
		"  ssh:",
		"    identityFile: " + m.Key,
		fmt.Sprintf("    hostKeys: [%q]", m.HostKey),
		"  server:",
		"    tlsCertFile: " + h.Serving.Cert,
		"    tlsPrivateKeyFile: " + h.Serving.Key,
		"  authentication:",
		"    x509: {clientCAFile: " + h.ClientCA + "}",
	}
	for _, line := range extra {
		lines = append(lines, "  "+line)
	}
	return lab.ConfigHead() + strings.Join(lines, "\n") + "\n"
}
