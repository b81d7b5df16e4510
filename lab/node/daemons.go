package node

import (
	"fmt"
	"net/netip"

	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/proc"
)

func loopback() []netip.Addr { return []netip.Addr{netip.MustParseAddr("127.0.0.1")} }

// Components are the daemons of a host, in the order in which they start; of a bare
// host, which somebody else gives a runtime.
func Components(r layout.Runtime, bare bool) []string {
	if bare {
		return []string{"sshd"}
	}
	return []string{string(r), "sshd", "kube-proxy"}
}

// Daemon describes one daemon of the host; pid is a process inside it. Besides
// those of Components there is "kubelet", which runs only when asked for.
func Daemon(t Tools, h layout.Host, f Files, pid int, component string) (proc.Daemon, error) {
	d := proc.Daemon{
		Name:   h.Process(component),
		Enter:  Command(t, h, pid),
		RunDir: h.Lab.Path("run"),
		LogDir: h.Lab.Path("logs"),
	}
	switch component {
	case string(layout.CRIO):
		// The runc in front of it is found by its path, and by that the real one on the PATH.
		d.Env = []string{t.path()}
		d.Args = []string{t.crio("crio"), "--config", f.CRIO, "--config-dir", ""}
	case string(layout.Containerd):
		// The shim is found on the PATH, and by it runc.
		d.Env = []string{t.path()}
		d.Args = []string{t.Bin + "/bowline-containerd", "--config", f.Containerd}
	case "sshd":
		d.Args = []string{"/usr/sbin/sshd", "-D", "-e", "-f", f.Sshd}
	case "kube-proxy":
		// It ends when the node's addresses change, which they do when the node
		// registers, and wants to be started again.
		d.Args = []string{t.Self, "_supervise", "--", t.Bin + "/bowline-kube", "kube-proxy", "--config", f.KubeProxy}
	case "kubelet":
		d.Args = []string{t.Bin + "/bowline-kubelet", "--config", f.Kubelet, "--kubeconfig", f.NodeKubeconfig,
			"--hostname-override", h.Name(), "--node-ip", h.IP().String()}
	default:
		return d, fmt.Errorf("%s has no %q: it is one of %v or kubelet", h.Name(), component, Components(t.Runtime, false))
	}
	return d, nil
}
