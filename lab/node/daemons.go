package node

import (
	"fmt"
	"net/netip"

	"github.com/bowline-k8s/bowline/lab/layout"
	"github.com/bowline-k8s/bowline/lab/proc"
)

func loopback() []netip.Addr { return []netip.Addr{netip.MustParseAddr("127.0.0.1")} }

// Components lists the daemons of a host in the order in which they start. A bare host gets its
// runtime from the caller.
func Components(r layout.Runtime, bare bool) []string {
	if bare {
		return []string{"sshd"}
	}
	return []string{string(r), "sshd", "kube-proxy"}
}

// Daemon describes one daemon of the host; pid is a process inside it. Besides those of Components
// there is "kubelet", which runs only on request.
func Daemon(t Tools, h layout.Host, f Files, pid int, component string) (proc.Daemon, error) {
	d := proc.Daemon{
		Name:   h.Process(component),
		Enter:  Command(t, h, pid),
		RunDir: h.Lab.Path("run"),
		LogDir: h.Lab.Path("logs"),
	}
	switch component {
	case string(layout.CRIO):
		// CRI-O finds the wrapper of runc by its path, and the wrapper finds runc on the PATH.
		d.Env = []string{t.path()}
		d.Args = []string{t.crio("crio"), "--config", f.CRIO, "--config-dir", ""}
	case string(layout.Containerd):
		// containerd finds the shim on the PATH, and the shim finds runc there.
		d.Env = []string{t.path()}
		d.Args = []string{t.Bin + "/bowline-containerd", "--config", f.Containerd}
	case "sshd":
		d.Args = []string{"/usr/sbin/sshd", "-D", "-e", "-f", f.Sshd}
	case "kube-proxy":
		// kube-proxy ends when the node's addresses change, which happens when the node registers,
		// and expects a restart.
		d.Args = []string{t.Self, "_supervise", "--", t.Bin + "/bowline-kube", "kube-proxy", "--config", f.KubeProxy}
	case "kubelet":
		d.Args = []string{t.Bin + "/bowline-kubelet", "--config", f.Kubelet, "--kubeconfig", f.NodeKubeconfig,
			"--hostname-override", h.Name(), "--node-ip", h.IP().String()}
	default:
		return d, fmt.Errorf("%s has no %q: it is one of %v or kubelet", h.Name(), component, Components(t.Runtime, false))
	}
	return d, nil
}
