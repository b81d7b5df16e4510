package e2e

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// A process that manages a remote host runs as an ordinary user without any capability. It reaches
// the API server and the host's sshd and nothing else. The remote host has its own namespaces and
// directories, and the files at the same paths beside the process stay untouched.
func TestApart(t *testing.T) {
	serial(t)
	onlyRemote(t)
	status := testutil.ReadFile(t, fmt.Sprintf("/proc/%d/status", bowline.PID()))
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
			testutil.Must(t, err)
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
		testutil.Must(t, err)
		there, err := os.Stat(fmt.Sprintf("/proc/%d/root%s", h.PID, dir))
		testutil.Must(t, err)
		if os.SameFile(here, there) {
			t.Errorf("the machine's %s is this one's", dir)
		}
	}
	// Which addresses does the process reach?
	api := strings.TrimPrefix(lab.Status.Cluster.APIURL, "https://")
	gateway, _, err := net.SplitHostPort(api)
	testutil.Must(t, err)
	for _, to := range []struct {
		address string
		reached bool
	}{
		{api, true}, {wire.Address(), true},
		{h.SSH.Address, false},                                    // only through the wire
		{net.JoinHostPort(h.IP, "10256"), false},                  // kube-proxy's health port
		{net.JoinHostPort(gateway, "2379"), false},                // etcd
		{net.JoinHostPort(lab.Status.Cluster.DNSIP, "53"), false}, // a Service
	} {
		address, port, err := net.SplitHostPort(to.address)
		testutil.Must(t, err)
		out, err := exec.CommandContext(t.Context(), "nsenter", "-t", fmt.Sprint(bowline.PID()), "-n", "--", "timeout", "5",
			"bash", "-c", "exec 3<>/dev/tcp/"+address+"/"+port).CombinedOutput()
		if (err == nil) != to.reached {
			t.Errorf("%s is reached: %v, want %v: %s", to.address, err == nil, to.reached, out)
		}
	}
	testutil.Must(t, labtest.CheckCanaries(bowline.PID()))
}
