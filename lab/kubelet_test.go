package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/lab/internal/testutil"
	"github.com/bowline-k8s/bowline/lab/proc"
)

// TestKubelet tests the lab with the real kubelet: pods on two hosts, a Service between them,
// cluster DNS, logs and exec.
func TestKubelet(t *testing.T) {
	c, out := labTest(t, 14)
	c.Hosts = 2
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	t.Cleanup(func() {
		if t.Failed() {
			for _, process := range []string{"host1-kubelet", "host2-kubelet", "host1-kube-proxy", "host2-kube-proxy", "kube-apiserver", "kube-controller-manager"} {
				t.Logf("%s:\n%s", process, proc.Tail(filepath.Join(c.Dir, "logs", process+".log"), 12))
			}
		}
		if err := Down(context.Background(), c); err != nil {
			t.Error(err)
		}
	})
	testutil.Must(t, Up(ctx, c))
	for _, host := range []string{"host1", "host2"} {
		testutil.Must(t, Start(ctx, c, host, "kubelet"))
	}
	kubectl := func(args ...string) string {
		t.Helper()
		argv := append([]string{"--dir", c.Dir, "kubectl"}, args...)
		out, err := exec.CommandContext(ctx, c.Tools.Self, argv...).CombinedOutput()
		if err != nil {
			t.Fatalf("kubectl %q: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	if err := poll(ctx, time.Minute, func() error {
		if got := kubectl("get", "nodes", "-o", "jsonpath={range .items[*]}{.metadata.name} {.spec.podCIDR} {end}"); got != "host1 10.78.1.0/24 host2 10.78.2.0/24" {
			return fmt.Errorf("nodes are %q", got)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	kubectl("wait", "--for=condition=Ready", "node", "--all", "--timeout=60s")
	kubectl("create", "deployment", "web", "--image", "registry.lab/web:v1", "--replicas", "4")
	kubectl("expose", "deployment", "web", "--port", "80", "--target-port", "8080")
	kubectl("run", "box", "--image", "registry.lab/toolbox:lab", "--command", "--", "sh", "-c", "echo started; sleep inf")
	kubectl("rollout", "status", "deployment/web", "--timeout=60s")
	kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=60s")
	kubectl("wait", "--for=condition=Ready", "pod/box", "--timeout=60s")

	hosts := map[string]bool{}
	for pod := range strings.Lines(kubectl("get", "pods", "-l", "app=web", "-o", `jsonpath={range .items[*]}{.metadata.name} {.spec.nodeName}{"\n"}{end}`)) {
		hosts[strings.Fields(pod)[1]] = true
	}
	if len(hosts) != 2 {
		t.Errorf("the pods are all on %v", hosts)
	}
	answers := map[string]bool{}
	if err := poll(ctx, time.Minute, func() error {
		for line := range strings.Lines(kubectl("exec", "box", "--", "sh", "-c", "for i in $(seq 10); do wget -q -O - http://web.default | head -n 1; done")) {
			answers[strings.TrimSpace(line)] = true
		}
		if len(answers) < 4 {
			return fmt.Errorf("only %d of the Service's 4 pods answer", len(answers))
		}
		return nil
	}); err != nil {
		t.Error(err)
	}
	if got := kubectl("exec", "box", "--", "nslookup", "-type=a", "kubernetes.default.svc.cluster.local"); !strings.Contains(got, "Address: 10.94.0.1") {
		t.Errorf("kubernetes.default is %s", got)
	}
	if got := kubectl("logs", "box"); got != "started" {
		t.Errorf("the log says %q", got)
	}
	// The API server reaches a Service's pods. These speak HTTP where the aggregator wants HTTPS, so it
	// says that one of them answered; through the Service's address it would reach nothing.
	kubectl("apply", "-f", objectFile(t, `{"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.lab.example"},
		"spec": {"group": "lab.example", "version": "v1", "groupPriorityMinimum": 100, "versionPriority": 100, "insecureSkipTLSVerify": true,
			"service": {"namespace": "default", "name": "web", "port": 80}}}`))
	testutil.Must(t, poll(ctx, time.Minute, func() error {
		got := kubectl("get", "apiservice", "v1.lab.example", "-o", `jsonpath={.status.conditions[?(@.type=="Available")].message}`)
		if !strings.Contains(got, "server gave HTTP response to HTTPS client") {
			return fmt.Errorf("the aggregator says %q", got)
		}
		return nil
	}))
	kubectl("delete", "apiservice", "v1.lab.example")
	if got := kubectl("version"); strings.Count(got, ": v1.") < 2 {
		t.Errorf("kubectl and the API server have no version:\n%s", got)
	}

	testBusyPods(t, c, kubectl)

	for _, host := range []string{"host1", "host2"} {
		if err := Stop(ctx, c, host, "kubelet"); err != nil {
			t.Error(err)
		}
	}
	testutil.Must(t, Reset(ctx, c, "host1"))
	if got := kubectl("get", "nodes", "-o", "name"); got != "node/host2" {
		t.Errorf("after the reset of host1 there are %q", got)
	}
	if got, code := inHost(c, "host1", "ls", "/var/lib/kubelet"); code != 0 || got != "" {
		t.Errorf("after the reset host1 has %q", got)
	}
	t.Log(out.take())
}

// objectFile writes a file of the test's own and returns its path.
func objectFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "object.json")
	testutil.Must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}
