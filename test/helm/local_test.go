package helm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

const (
	// beside is the name of the node that a second runtime on the local host becomes; the lab has a
	// pod network for it.
	beside         = "host9"
	localNamespace = "bowline-local"
	secondDir      = "/run/containerd-two"
	// localDir is that node's directory, below /run, which each lab host has for itself.
	localDir = "/run/bowline-two"
)

// onBeside are pods of the second runtime: one on its own network, one on the host's.
const onBeside = `
apiVersion: v1
kind: Pod
metadata: {name: own}
spec:
  nodeSelector: {kubernetes.io/hostname: host9}
  tolerations: [{key: bowline.io/node, operator: Exists}]
  terminationGracePeriodSeconds: 1
  volumes: [{name: word, configMap: {name: app}}, {name: scratch, emptyDir: {medium: Memory}}]
  containers:
  - name: box
    image: registry.lab/toolbox:lab
    command: [sh, -c, "echo beside; sleep infinity"]
    volumeMounts: [{name: word, mountPath: /word}, {name: scratch, mountPath: /scratch}]
`

// localSocket: a privileged pod of the chart on the local host makes a node of a second runtime
// there and leaves the first runtime's pods alone. After its uninstallation nothing of that node is
// left.
func (c *cluster) localSocket() {
	c.t.Helper()
	socket := c.secondRuntime()
	c.kubectl("create", "namespace", localNamespace)
	values := c.file("local.yaml", fmt.Sprintf(`
image: {repository: registry.lab/bowline, tag: test}
serverTLSBootstrap: true
verbosity: 2
localSocket:
  enabled: true
  node: %s
  nodeName: %s
  endpoint: unix://%s
  host: {rootDirectory: %[4]s/root, podLogsDirectory: %[4]s/logs}
config:
  %[5]s
`, localHost, beside, socket, localDir, strings.Join(labtest.AnyDisk, "\n  ")))
	c.run(c.helm, "install", "bowline-local", c.chart(), "-n", localNamespace, "-f", values, "--wait", "--timeout", patience)
	c.until("the second runtime is a node", func(ctx context.Context) error {
		n, err := c.lab.Client.CoreV1().Nodes().Get(ctx, beside, metav1.GetOptions{})
		if err != nil {
			out, _ := c.lab.Kubectl(ctx, "logs", "-n", localNamespace, "deployment/bowline-local", "--tail=5")
			return fmt.Errorf("%w: %s%s", err, out.Stdout, out.Stderr)
		}
		for _, cond := range n.Status.Conditions {
			if cond.Type == v1.NodeReady && cond.Status != v1.ConditionTrue {
				return errors.New(cond.Message)
			}
		}
		return nil
	})
	c.kubectl("apply", "-f", c.file("beside.yaml", onBeside))
	p, err := c.lab.PodReady(c.t.Context(), v1.NamespaceDefault, "own", 3*time.Minute)
	if err != nil {
		c.fatalf("%v", err)
	}
	if p.Spec.NodeName != beside {
		c.t.Errorf("the pod runs on %s", p.Spec.NodeName)
	}
	c.approveWhile("exec and logs reach it", func(ctx context.Context) error {
		exec, err := c.lab.Kubectl(ctx, "exec", "own", "--", "sh", "-c", "cat /word/word; grep -c /scratch /proc/mounts")
		if err != nil {
			return err
		}
		logs, err := c.lab.Kubectl(ctx, "logs", "own")
		if err == nil && (exec.Stdout != "config-word1\n" || logs.Stdout != "beside\n") {
			err = fmt.Errorf("exec: %q %q; logs: %q %q", exec.Stdout, exec.Stderr, logs.Stdout, logs.Stderr)
		}
		return err
	})
	c.run(c.helm, "test", "bowline-local", "-n", localNamespace, "--timeout", patience)

	c.run(c.helm, "uninstall", "bowline-local", "-n", localNamespace, "--wait", "--timeout", patience)
	if _, err := c.lab.Client.CoreV1().Nodes().Get(c.t.Context(), beside, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("the node: %v", err)
	}
	left, err := labtest.Capture(c.lab.Exec(c.t.Context(), localHost, "sh", "-c",
		"find "+localDir+" ! -type d; for f in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$f; echo; done 2>/dev/null"))
	testutil.Must(c.t, err)
	for line := range strings.Lines(left.Stdout) {
		if strings.HasPrefix(line, localDir) || strings.Contains(line, "containerd-shim") && strings.Contains(line, secondDir) {
			c.t.Errorf("there is left %s", line)
		}
	}
	if _, err := c.lab.NodeReady(c.t.Context(), localHost, v1.ConditionTrue, time.Minute); err != nil {
		c.t.Error(err)
	}
}

// secondRuntime starts another containerd on the local host, with the first one's configuration and
// other paths, and returns its socket.
func (c *cluster) secondRuntime() string {
	c.t.Helper()
	h := c.lab.Host(localHost)
	first := testutil.ReadFile(c.t, filepath.Join(filepath.Dir(h.Root), "containerd.toml"))
	config := strings.NewReplacer(
		`"/var/lib/containerd"`, `"/var/lib/containerd/two"`,
		"/run/containerd", secondDir,
		"/etc/cni/net.d", "/etc/cni/two",
	).Replace(string(first))
	cni := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "two", "plugins": [{"type": "bridge", "bridge": "cni2", "isGateway": true,
  "ipam": {"type": "host-local", "dataDir": "/run/cni-two", "ranges": [[{"subnet": "10.%d.9.0/24"}]]}}]}`, 64+c.lab.Status.Index)
	two := filepath.Join(h.Root, "etc/cni/two")
	testutil.Must(c.t, os.MkdirAll(two, 0o755))
	testutil.Must(c.t, os.WriteFile(filepath.Join(two, "10-two.conflist"), []byte(cni), 0o644))

	// It runs below the host's cgroup and in its namespaces, so it ends with the lab at the latest.
	cmd := c.lab.Exec(context.WithoutCancel(c.t.Context()), localHost, labtest.Program("bowline-containerd"), "--config", c.file("containerd-two.toml", config))
	log, err := os.Create(filepath.Join(c.lab.Dir, "logs/containerd-two.log"))
	testutil.Must(c.t, err)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "PATH="+labtest.Cache()+"/bin:"+os.Getenv("PATH"))
	testutil.Must(c.t, cmd.Start())
	c.t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
		_ = log.Close()
	})
	socket := secondDir + "/containerd.sock"
	c.until("the second runtime answers", func(ctx context.Context) error {
		out, err := labtest.Capture(c.lab.Exec(ctx, localHost, "test", "-S", socket))
		if err == nil && out.Code != 0 {
			err = errors.New("there is no socket")
		}
		return err
	})
	return socket
}
