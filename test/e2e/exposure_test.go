package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// TestExposedByTheMachine: with kubeletExposure host the API server reaches logs and exec at the
// machine's own address, where its sshd listens for Bowline, which listens nowhere itself. If sshd
// may not listen there, the node's condition has the line that fixes it; pods run meanwhile, and
// Bowline notices the fix. The port comes back after the link does, and with the next process.
func TestExposedByTheMachine(t *testing.T) {
	serial(t)
	onlyRemote(t)
	ns := namespace(t)
	d := openDoor(t, nil, "", "")
	through, err := labtest.NewWire(d.address)
	testutil.Must(t, err)
	defer through.Close()
	d.address = through.Address()
	config := d.config(t, "root", "  identityFile: "+d.key, "kubeletExposure: host")
	address := lab.Host(host).IP
	works := func(ctx context.Context) error {
		if err := answer(ns, "runs", "echo answers", "answers")(ctx); err != nil {
			return err
		}
		out, err := lab.Kubectl(ctx, "logs", "-n", ns, "runs", "-c", "main")
		if err == nil && out.Stdout != "told\n" {
			err = fmt.Errorf("the log is %q: %s", out.Stdout, out.Stderr)
		}
		return err
	}
	withoutBowline(t, func() {
		b := &labtest.Bowline{Lab: lab, Host: host, Wire: through, Config: config, Args: []string{"-v=2"}, LogPath: bowline.LogPath}
		// sshd listens on loopback instead, and reports no error.
		program, err := labtest.BuiltBowline()
		testutil.Must(t, err)
		check, err := labtest.Capture(exec.CommandContext(t.Context(), program, "host", "check", "--kubelet-exposure", "host", "--identity-file", d.key,
			"--host-key", d.hostKey, "ssh://root@"+d.address+lab.Host(host).RuntimeSocket))
		testutil.Must(t, err)
		if line := regexp.MustCompile(`(?m)^failure +exposure .*` + regexp.QuoteMeta(address) + `:10250(.*\n)+? +GatewayPorts clientspecified$`).FindString(check.Stdout); line == "" || check.Code != 1 {
			t.Errorf("host check ended with %d and says\n%s%s", check.Code, check.Stdout, check.Stderr)
		}
		testutil.Must(t, b.Start())
		defer func() { testutil.Must(t, b.Stop()) }()
		testutil.Must(t, labtest.Until(t.Context(), 2*time.Minute, "the node says what is to be set", wantCondition("KubeletExposed", v1.ConditionFalse, "GatewayPorts clientspecified")))
		create(t, ns, brief("runs", `
  hostNetwork: true
  containers: [{name: main, image: $TOOLBOX, command: [sh, -c, "echo told; exec sleep infinity"]}]
`))
		before := readyWithin(t, 2*time.Minute, ns, "runs")
		if before.Status.HostIP != address || before.Status.PodIP != address {
			t.Errorf("a pod on the host's network has the addresses %s and %s, not %s", before.Status.HostIP, before.Status.PodIP, address)
		}
		if out, err := lab.Kubectl(t.Context(), "logs", "-n", ns, "runs"); err != nil || out.Code == 0 {
			t.Errorf("its log before the fix: %v: %s", err, out.Stdout)
		}
		d.reload(t, "GatewayPorts clientspecified")
		testutil.Must(t, labtest.Until(t.Context(), 3*time.Minute, "the fix is noticed", wantCondition("KubeletExposed", v1.ConditionTrue, address)))
		until(t, "log and shell are there", works)

		node := getNode(t, lab)
		equal(t, "the node's port", node.Status.DaemonEndpoints.KubeletEndpoint.Port, 10250)
		for _, a := range node.Status.Addresses {
			if a.Type == v1.NodeInternalIP && a.Address != address {
				t.Errorf("the node's address is %s, not %s", a.Address, address)
			}
		}
		if open := listening(t, b.PID()); len(open) > 0 {
			t.Errorf("the process itself listens: %q", open)
		}
		create(t, ns, brief("web", "containers: [{name: web, image: $WEB}]"))
		readyWithin(t, 2*time.Minute, ns, "web")
		contains(t, "what was forwarded", forwarded(t, ns, "web"), "web\nversion v1")

		through.Cut()
		until(t, "LinkUp is False", wantCondition("LinkUp", v1.ConditionFalse))
		through.Restore()
		testutil.Must(t, labtest.Until(t.Context(), 2*time.Minute, "log and shell are back with the link", works))

		b.Kill()
		testutil.Must(t, b.Start())
		testutil.Must(t, labtest.Until(t.Context(), 2*time.Minute, "log and shell are back with the next process", works))
		testutil.Must(t, labtest.Until(t.Context(), patience, "the node says so", wantCondition("KubeletExposed", v1.ConditionTrue, net.JoinHostPort(address, "10250"))))
		after := readyWithin(t, patience, ns, "runs")
		same(t, before, after)
	})
	if _, err := lab.NodeReady(t.Context(), host, v1.ConditionTrue, patience); err != nil {
		t.Error(err)
	}
	until(t, "the node takes it back", wantCondition("KubeletExposed", v1.ConditionTrue, "Bowline's own address"))
}

// listening returns the TCP sockets on which a process listens, as lines of /proc/net.
func listening(t *testing.T, pid int) []string {
	t.Helper()
	proc := fmt.Sprintf("/proc/%d", pid)
	fds, err := os.ReadDir(proc + "/fd")
	testutil.Must(t, err)
	own := map[string]bool{}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(proc, "fd", fd.Name())); err == nil {
			if inode, ok := strings.CutPrefix(to, "socket:["); ok {
				own[strings.TrimSuffix(inode, "]")] = true
			}
		}
	}
	if len(own) == 0 {
		t.Error("no socket of the process is seen")
	}
	var open []string
	for _, table := range []string{"/net/tcp", "/net/tcp6"} {
		data, err := os.ReadFile(proc + table)
		if err != nil {
			continue // a machine without IPv6
		}
		for line := range strings.Lines(string(data)) {
			// sl local remote st tx:rx tr:when retrnsmt uid timeout inode; 0A is TCP_LISTEN.
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && own[f[9]] {
				open = append(open, strings.TrimSpace(line))
			}
		}
	}
	return open
}
