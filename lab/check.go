package lab

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/node"
)

// needed lists the programs that the lab uses, each with its Debian package.
var needed = []struct{ program, pkg string }{
	{"ip", "iproute2"},
	{"iptables", "iptables"},
	{"ipset", "ipset"},
	{"conntrack", "conntrack"},
	{"runc", "runc"},
	{"/usr/lib/cni/bridge", "containernetworking-plugins"},
	{"/usr/sbin/sshd", "openssh-server"},
	{"ssh-keygen", "openssh-client"},
}

// built lists the programs that hack/build-lab.sh makes.
var built = []string{"bowline-kube", "bowline-containerd", "containerd-shim-runc-v2", "bowline-coredns", "pause", "web", "toolbox", "busybox"}

// check returns one sentence that says what the machine lacks and how to fix it.
func check(t node.Tools) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("a lab makes namespaces and links, which needs root: sudo bowline-lab up")
	}
	for bit, name := range map[uintptr]string{unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN", unix.CAP_NET_ADMIN: "CAP_NET_ADMIN"} {
		if r, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, bit, 0, 0, 0); err == nil && r == 0 {
			return fmt.Errorf("this machine's root lacks %s, without which there are no namespaces: run the lab in a virtual machine, or in a container started with --privileged", name)
		}
	}
	var packages []string
	for _, n := range needed {
		_, err := exec.LookPath(n.program)
		if strings.HasPrefix(n.program, "/") {
			_, err = os.Stat(n.program)
			if err != nil && n.pkg == "containernetworking-plugins" {
				_, err = os.Stat("/opt/cni/bin/" + filepath.Base(n.program))
			}
		}
		if err != nil {
			packages = append(packages, n.pkg)
		}
	}
	if len(packages) > 0 {
		return fmt.Errorf("programs are missing: apt-get install -y %s", strings.Join(packages, " "))
	}
	var missing []string
	for _, program := range built {
		if _, err := os.Stat(filepath.Join(t.Bin, program)); err != nil {
			missing = append(missing, program)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("%s has no %s: hack/build-lab.sh", t.Bin, strings.Join(missing, ", "))
	}
	return nil
}

// checkRuntime returns one sentence that says what a host's runtime lacks. CRI-O has its own build
// script.
func checkRuntime(t node.Tools) error {
	if t.Runtime != layout.CRIO {
		return nil
	}
	if _, err := exec.LookPath("conmon"); err != nil {
		return fmt.Errorf("conmon is missing, which CRI-O runs its containers with: hack/build-crio.sh")
	}
	if missing := node.MissingCRIO(t); missing != "" {
		return fmt.Errorf("%s is missing: hack/build-crio.sh builds CRI-O", missing)
	}
	return nil
}

// checkRoutes reports which of the lab's networks the machine already routes elsewhere.
func checkRoutes(lab layout.Lab) error {
	out, err := exec.Command("ip", "-4", "route", "show").Output()
	if err != nil {
		return fmt.Errorf("ip route: %w", err)
	}
	return routeConflict(lab, string(out))
}

func routeConflict(lab layout.Lab, routes string) error {
	for line := range strings.Lines(routes) {
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.Contains(line, " dev "+lab.Bridge()+" ") || strings.HasSuffix(strings.TrimSpace(line), " dev "+lab.Bridge()) {
			continue
		}
		dest := fields[0]
		if !strings.Contains(dest, "/") {
			dest += "/32"
		}
		prefix, err := netip.ParsePrefix(dest)
		if err != nil {
			continue // the default route, or a kind of route that takes no traffic
		}
		for _, ours := range []netip.Prefix{lab.NodeNet(), lab.PodNet(), lab.ServiceNet()} {
			if prefix.Overlaps(ours) {
				return fmt.Errorf("the machine already routes %s, which lab %d needs as part of %s: choose another --index", prefix, lab.Index, ours.Masked())
			}
		}
	}
	return nil
}

// forwardFiltered reports whether frames that cross the bridge would meet iptables rules or a
// policy that may drop them, as they do with Docker.
func forwardFiltered() bool {
	if data, err := os.ReadFile("/proc/sys/net/bridge/bridge-nf-call-iptables"); err != nil || strings.TrimSpace(string(data)) != "1" {
		return false
	}
	// iptables itself would create the table if there is none; iptables-save does not.
	out, err := exec.Command("iptables-save", "-t", "filter").Output()
	return err == nil && (bytes.Contains(out, []byte(":FORWARD DROP")) || bytes.Contains(out, []byte("-A FORWARD")))
}
