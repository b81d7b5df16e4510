package node

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/lab/cgroups"
	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/proc"
)

// Descriptors of the first process of a host, passed by the command that starts it.
const (
	reportFD = 3 // one line: "ok", or the error
	goFD     = 4 // receives one byte when the host's link has been moved in
)

// CloneFlags are the namespaces in which the first process of a host starts. The cgroup namespace
// follows once the process has joined its cgroup.
const CloneFlags = syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET

// systemWeight is the CPU weight of the cgroup of a host's daemons, in ordinary cgroups such as
// those of its pods.
const systemWeight = 32

// Isolate is the first half of a host's first process: it joins the host's cgroup, makes it the
// root of a cgroup namespace, moves itself into the daemons' cgroup below it, and executes the
// second half.
func Isolate(h layout.Host, second []string) error {
	runtime.LockOSThread()
	if err := cgroups.Join(h.Cgroup()); err != nil {
		return err
	}
	if err := unix.Unshare(unix.CLONE_NEWCGROUP); err != nil {
		return fmt.Errorf("make a cgroup namespace: %w", err)
	}
	if err := cgroups.Join(h.SystemCgroup()); err != nil {
		return err
	}
	if err := cgroups.Delegate(h.Cgroup()); err != nil {
		return err
	}
	if err := cgroups.Weigh(h.SystemCgroup(), systemWeight); err != nil {
		return err
	}
	return syscall.Exec(second[0], second, os.Environ())
}

// Setup is the second half: it sets up the host's view of the file system and its network, reports,
// and executes keeper, a process that only waits. hosts is the number of hosts in the lab.
func Setup(h layout.Host, hosts int, keeper []string) error {
	report := os.NewFile(reportFD, "report")
	err := errors.Join(setup(h, hosts), proc.KeepNothing())
	if err != nil {
		fmt.Fprintln(report, strings.ReplaceAll(err.Error(), "\n", "; "))
		return err
	}
	fmt.Fprintln(report, "ok")
	return syscall.Exec(keeper[0], keeper, os.Environ())
}

func setup(h layout.Host, hosts int) error {
	if err := unix.Sethostname([]byte(h.Name())); err != nil {
		return fmt.Errorf("set the host name: %w", err)
	}
	if err := mounts(h); err != nil {
		return err
	}
	if _, err := io.ReadFull(os.NewFile(goFD, "go"), make([]byte, 1)); err != nil {
		return fmt.Errorf("wait for the link: %w", err)
	}
	if err := sysctls(h.Lab); err != nil {
		return err
	}
	return network(h, hosts)
}

// mounts hides everything from the host that it must not share with the machine.
func mounts(h layout.Host) error {
	// Mounts in the host never reach the machine. Within the host they propagate as on a machine
	// that systemd has booted.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("make mounts shared: %w", err)
	}
	hierarchies, err := cgroups.Mounted()
	if err != nil {
		return err
	}
	// Copy the targets of links into /run before /run is hidden.
	if err := ownEtc(h.Path("root", "etc")); err != nil {
		return err
	}
	for _, b := range h.Binds() {
		if err := unix.Mount(b.Source, b.Target, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind %s over %s: %w", b.Source, b.Target, err)
		}
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	for _, dir := range []string{"/run/lock", "/run/netns", "/run/sshd"} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return fmt.Errorf("mount /sys: %w", err)
	}
	return mountCgroups(hierarchies)
}

// notCopied lists the entries of /etc that a host does not copy from the machine: those that the
// host has of its own, and those that make a machine a node.
var notCopied = map[string]bool{
	"hosts": true, "resolv.conf": true, "machine-id": true, // config.go writes them
	"cni": true, "containerd": true, "modules-load.d": true, "sysctl.d": true,
	"kubernetes": true, "bowline": true,
}

// ownEtc gives the host its own /etc, once: a copy of the machine's.
func ownEtc(dir string) error {
	whole := dir + ".copied" // exists once the copy is complete
	if _, err := os.Stat(whole); err == nil {
		return nil
	}
	for _, name := range []string{"cni", "containerd", "modules-load.d", "sysctl.d"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	entries, err := os.ReadDir("/etc")
	if err != nil {
		return err
	}
	args := []string{"-a", "-t", dir, "--"}
	for _, e := range entries {
		if !notCopied[e.Name()] {
			args = append(args, "/etc/"+e.Name())
		}
	}
	if out, err := exec.Command("cp", args...).CombinedOutput(); err != nil {
		return fmt.Errorf("copy /etc: %w: %s", err, out)
	}
	return os.WriteFile(whole, nil, 0o644)
}

// mountCgroups mounts the hierarchies at the same paths as on the machine. In a cgroup namespace a
// new mount shows the host's cgroup as the root.
func mountCgroups(hierarchies []cgroups.Hierarchy) error {
	const root, flags = "/sys/fs/cgroup", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if len(hierarchies) != 1 || hierarchies[0].Mount != root {
		if err := unix.Mount("tmpfs", root, "tmpfs", flags, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", root, err)
		}
	}
	for _, c := range hierarchies {
		if c.Mount != root && !strings.HasPrefix(c.Mount, root+"/") {
			continue
		}
		if err := os.MkdirAll(c.Mount, 0o755); err != nil {
			return err
		}
		kind := "cgroup"
		if c.V2 {
			kind = "cgroup2"
		}
		if err := unix.Mount(kind, c.Mount, kind, flags, strings.Join(c.Options, ",")); err != nil {
			return fmt.Errorf("mount %s at %s: %w", kind, c.Mount, err)
		}
	}
	return nil
}

// sysctls sets the sysctls of the host's network namespace: it routes for its pods, and traffic
// between pods on one bridge passes kube-proxy's rules.
//
// The lab's hosts take turns. The kernel changes ip_forward only while no other process changes any
// network, and the writer spins in the kernel until then. Several writers at once take the
// processors from the process that would finish next, for minutes.
func sysctls(lab layout.Lab) error {
	turn, err := os.OpenFile(lab.Path("sysctls.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer turn.Close()
	if err := unix.Flock(int(turn.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("lock %s: %w", turn.Name(), err)
	}
	for file, value := range map[string]string{
		"net/ipv4/ip_forward":                 "1",
		"net/bridge/bridge-nf-call-iptables":  "1",
		"net/bridge/bridge-nf-call-ip6tables": "1",
	} {
		err := os.WriteFile("/proc/sys/"+file, []byte(value), 0)
		// Without br_netfilter the kernel does not show such bridge traffic to iptables.
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func network(h layout.Host, hosts int) error {
	return IP(append([]string{
		"link set lo up",
		"link set " + h.PeerLink() + " name eth0",
		"addr add " + h.IP().String() + "/24 dev eth0",
		"link set eth0 up",
		"route add default via " + h.Lab.Gateway().String(),
	}, Routes(h, hosts)...))
}

// Routes returns the ip commands that let a host reach the pods of the others.
func Routes(h layout.Host, hosts int) []string {
	var commands []string
	for _, other := range h.Lab.Hosts(hosts) {
		if other.Number != h.Number {
			commands = append(commands, "route replace "+other.PodCIDR().String()+" via "+other.IP().String())
		}
	}
	return commands
}

// IP runs commands of ip(8) in one process, in the caller's network namespace.
func IP(commands []string) error {
	cmd := exec.Command("ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(strings.Join(commands, "\n") + "\n")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("ip: %s (of %q)", strings.TrimSpace(string(out)), commands)
	}
	return nil
}
