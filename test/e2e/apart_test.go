package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/test/labtest"
)

// What drives a far machine is an ordinary user's process without any capability,
// which reaches the API server and the machine's sshd and nothing else. The far
// machine has namespaces and directories of its own, and what lies at the same
// paths beside the process is untouched.
func TestApart(t *testing.T) {
	serial(t)
	if !far {
		t.Skip("the machine is not far")
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", bowline.PID()))
	must(t, err)
	for _, name := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		if !strings.Contains(string(status), name+":\t0000000000000000\n") {
			t.Errorf("the process has capabilities: %s", status)
		}
	}
	if strings.Contains(string(status), "Uid:\t0\t") {
		t.Error("the process is root's")
	}
	for _, space := range []string{"mnt", "net", "uts"} {
		id := func(pid int) string {
			link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, space))
			must(t, err)
			return link
		}
		mine, process, machine := id(os.Getpid()), id(bowline.PID()), id(lab.Host(host).PID)
		if mine == process || process == machine || machine == mine {
			t.Errorf("the %s namespaces are %s here, %s of the process, %s of the machine", space, mine, process, machine)
		}
	}
	h := lab.Host(host)
	for _, dir := range []string{"/var/lib/kubelet", "/var/log/pods", "/run", "/etc"} {
		here, err := os.Stat(dir)
		if os.IsNotExist(err) {
			continue
		}
		must(t, err)
		there, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", h.PID, dir))
		must(t, err)
		if os.SameFile(here, there) {
			t.Errorf("the machine's %s is this one's", dir)
		}
	}
	// As the process: who answers?
	api := strings.TrimPrefix(lab.Status.Cluster.APIURL, "https://")
	gateway, _, err := net.SplitHostPort(api)
	must(t, err)
	for _, to := range []struct {
		address string
		reached bool
	}{
		{api, true}, {wire.Address(), true},
		{h.SSH.Address, false},                                    // only by way of the wire
		{net.JoinHostPort(h.IP, "10256"), false},                  // kube-proxy's health port
		{net.JoinHostPort(gateway, "2379"), false},                // etcd
		{net.JoinHostPort(lab.Status.Cluster.DNSIP, "53"), false}, // a Service
	} {
		address, port, err := net.SplitHostPort(to.address)
		must(t, err)
		out, err := exec.CommandContext(t.Context(), "nsenter", "-t", fmt.Sprint(bowline.PID()), "-n", "--", "timeout", "5",
			"bash", "-c", "exec 3<>/dev/tcp/"+address+"/"+port).CombinedOutput()
		if (err == nil) != to.reached {
			t.Errorf("%s is reached: %v, want %v: %s", to.address, err == nil, to.reached, out)
		}
	}
	must(t, labtest.CheckCanaries(bowline.PID()))
}
