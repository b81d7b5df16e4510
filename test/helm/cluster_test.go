package helm

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/audit"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// cluster is a lab whose first host is a node already, and whose API server logs requests.
type cluster struct {
	t        *testing.T
	lab      *labtest.Lab
	bowline  *labtest.Bowline
	pods     *labtest.History // every pod that ever existed
	helm     string           // the program
	program  string           // the user's bowline program
	values   string           // the file
	provoked []audit.Provoked // refusals that the test has caused
}

func newCluster(t *testing.T) *cluster {
	for _, key := range []string{"BOWLINE_HELM", "BOWLINE_IMAGE"} {
		if os.Getenv(key) == "" {
			t.Fatalf("%s is not set", key)
		}
	}
	program, err := labtest.BuiltBowline()
	testutil.Must(t, err)
	dir := labtest.Dir(t, "bowline-helm", false)
	c := &cluster{t: t, helm: os.Getenv("BOWLINE_HELM"), program: program}
	c.lab = labtest.StartFor(t, filepath.Join(dir, "lab"), 1+len(machines), "--audit")
	c.pods = c.lab.Watch(v1.NamespaceAll)
	t.Cleanup(c.pods.Stop)
	out, err := c.lab.Command(t.Context(), "load-image", "bowline:test", os.Getenv("BOWLINE_IMAGE")).CombinedOutput()
	if err != nil {
		t.Fatalf("load the image: %v\n%s", err, out)
	}

	c.bowline = &labtest.Bowline{Lab: c.lab, Host: localHost}
	end, err := c.bowline.Keep(func(code int) { t.Errorf("%s's Bowline ended with %d\n%s", localHost, code, c.bowline.LogTail(4000)) })
	testutil.Must(t, err)
	t.Cleanup(func() { end(false) })
	if _, err := c.lab.NodeReady(t.Context(), localHost, v1.ConditionTrue, 3*time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, c.bowline.LogTail(4000))
	}

	c.kubectl("create", "namespace", namespace)
	c.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
	var hosts strings.Builder
	for _, m := range machines {
		c.kubectl("create", "secret", "generic", m.name, "-n", namespace, "--type=kubernetes.io/ssh-auth", "--from-file=ssh-privatekey="+c.lab.Host(m.name).SSH.Key)
		fmt.Fprintf(&hosts, "- name: %s\n%s", m.name, c.spec(m, "  "))
	}
	c.values = c.file("values.yaml", `
image: {repository: registry.lab/bowline, tag: test}
replicas: 2
serverTLSBootstrap: true
verbosity: 2
config:
  `+strings.Join(labtest.AnyDisk, "\n  ")+`
hosts:
`+hosts.String())
	return c
}

// spec returns the spec of a machine's Host.
func (c *cluster) spec(m machine, indent string) string {
	h := c.lab.Host(m.name)
	return fmt.Sprintf("%[1]sendpoint: ssh://%[2]s@%[3]s%[4]s\n%[1]shostKeys: [%[5]q]\n%[1]skubeletExposure: %[6]s\n",
		indent, h.SSH.User, h.SSH.Address, h.RuntimeSocket, c.hostKey(m), m.exposure)
}

func (c *cluster) hostKey(m machine) string {
	c.t.Helper()
	key := testutil.ReadFile(c.t, c.lab.Host(m.name).SSH.HostKey)
	return strings.TrimSpace(string(key))
}

func (c *cluster) chart() string {
	path, err := filepath.Abs("../../charts/bowline")
	testutil.Must(c.t, err)
	return path
}

func (c *cluster) install() {
	c.t.Helper()
	c.run(c.helm, "install", "bowline", c.chart(), "-n", namespace, "-f", c.values, "--wait", "--timeout", patience)
}

func (c *cluster) upgrade(more ...string) {
	c.t.Helper()
	c.run(append([]string{c.helm, "upgrade", "bowline", c.chart(), "-n", namespace, "-f", c.values, "--wait", "--timeout", patience}, more...)...)
}

func (c *cluster) command(argv ...string) (string, error) {
	cmd := exec.CommandContext(c.t.Context(), argv[0], argv[1:]...)
	home := filepath.Join(c.lab.Dir, "home")
	cmd.Env = append(os.Environ(), "HOME="+home, "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home,
		"KUBECONFIG="+c.lab.Status.Cluster.AdminKubeconfig, "SSH_AUTH_SOCK=")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// run runs a command that must succeed.
func (c *cluster) run(argv ...string) string {
	c.t.Helper()
	out, err := c.command(argv...)
	if err != nil {
		c.fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return out
}

func (c *cluster) kubectl(args ...string) string {
	c.t.Helper()
	out, err := c.lab.Kubectl(c.t.Context(), args...)
	testutil.Must(c.t, err)
	if out.Code != 0 {
		c.fatalf("kubectl %s: %s%s", strings.Join(args, " "), out.Stdout, out.Stderr)
	}
	return out.Stdout
}

// until waits for a condition, and shows the cluster's state if it fails.
func (c *cluster) until(what string, condition func(ctx context.Context) error) {
	c.t.Helper()
	if err := labtest.Until(c.t.Context(), 4*time.Minute, what, condition); err != nil {
		c.fatalf("%v", err)
	}
}

// fatalf ends the test. The chart's state comes before the message, so that the end of a long log
// says what failed.
func (c *cluster) fatalf(format string, args ...any) {
	c.t.Helper()
	c.t.Log(c.state())
	c.t.Fatalf(format, args...)
}

// state collects the chart's state, for a failed test.
func (c *cluster) state() string {
	return c.lab.KubectlAll([][]string{
		{"get", "hosts", "-o", "yaml"}, {"get", "nodes", "-o", "wide"}, {"get", "pods", "-A", "-o", "wide"}, {"get", "events", "-n", namespace},
		{"logs", "-n", namespace, "-l", "app.kubernetes.io/name in (bowline,bowline-hook)", "--prefix", "--tail=60"},
	})
}

func (c *cluster) file(name, content string) string {
	path := filepath.Join(c.lab.Dir, name)
	testutil.Must(c.t, os.WriteFile(path, []byte(content), 0o600))
	return path
}
