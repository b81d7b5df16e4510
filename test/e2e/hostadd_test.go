package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// TestHostAdd: "host add" alone makes a machine a node, with a key made for it and the restrictions
// of the key's line; the commands show it; and "host remove" removes it.
func TestHostAdd(t *testing.T) {
	onlyLocal(t, "its host is always remote")
	parallel(t)
	p := newPooled(t, "host1")
	define(t, p.lab)
	p.objects(p.account("bowline", "host1"))
	testutil.Must(t, p.bowline.Start())
	t.Cleanup(p.bowline.Kill)
	c := p.cli()
	h := p.lab.Host("host1")
	hostKey := testutil.ReadFile(t, h.SSH.HostKey)
	add := []string{"host", "add", "host1", "--ssh", h.SSH.User + "@" + p.wires["host1"].Address(), "--socket", h.RuntimeSocket,
		"--label", "example.com/lent=true", "--by-hand"}

	c.fails("cannot ask you to confirm the host key", add...)
	add = append(add, "--host-key", strings.TrimSpace(string(hostKey)))
	said := c.fails("does not accept the key yet", add...)
	line := ""
	for l := range strings.Lines(said) {
		if strings.HasPrefix(l, "restrict,port-forwarding ssh-ed25519 ") {
			line = l
		}
	}
	// The lab's hosts share one file, which is removed with the lab.
	authorized, err := os.OpenFile(filepath.Join(p.lab.Dir, "ssh/authorized_keys"), os.O_APPEND|os.O_WRONLY, 0)
	testutil.Must(t, err)
	_, err = authorized.WriteString(line)
	testutil.Must(t, err)
	testutil.Must(t, authorized.Close())

	said = c.runs(add...)
	t.Log(said)
	contains(t, "host add", said, "from an earlier attempt", "accepts the key", "This host can be a node", "The Host host1 is created.", "The link is up.",
		"The runtime is containerd ", "The node host1 is Ready: ")
	node := p.ready("host1", 110)
	equal(t, "the node's label", node.Labels["example.com/lent"], "true")
	p.pod("on-it", "host1")

	if said := c.runs(add...); !strings.Contains(said, "exists already, for this host") || strings.Contains(said, "is made") {
		t.Errorf("once more:\n%s", said)
	}
	c.fails("the Host host1 exists already", "host", "add", "host1", "--ssh", "root@192.0.2.1")
	contains(t, "the machine of a Host that is managed", c.runs("host", "check", "host1"), "Bowline, as expected")
	// On an overloaded machine the link may be down for a moment.
	testutil.Must(t, labtest.Until(t.Context(), 90*time.Second, "the tables show it", func(context.Context) error {
		list, top := c.run("host", "list").Stdout, c.run("top", "--once").Stdout
		_, row, _ := strings.Cut(list, "\n")
		row = strings.Join(strings.Fields(row), " ")
		if !strings.HasPrefix(row, "host1 host1 True Up ") || !strings.Contains(row, " NodeReady ") ||
			!strings.Contains(top, " on-it ") || !strings.Contains(top, "containerd://") {
			return fmt.Errorf("they show\n%s%s", list, top)
		}
		return nil
	}))

	contains(t, "as a plugin", c.plugin("host", "remove", "--help"), "\n  kubectl bowline host remove NAME")
	contains(t, "as a plugin", c.plugin("host", "list"), "\nhost1 ")

	contains(t, "host remove", c.runs("host", "remove", "host1"), "is being drained", "The Host host1 and its node are gone.",
		"Deleted the Secret bowline/host1 with its key.", "authorized_keys")
	p.nodeIsGone("host1")
	equal(t, "containers that are left", p.containers("host1"), 0)
	if _, err := p.lab.Client.CoreV1().Secrets("bowline").Get(t.Context(), "host1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Secret: %v", err)
	}
	if _, err := p.lab.Client.CoreV1().Pods(v1.NamespaceDefault).Get(t.Context(), "on-it", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its pod: %v", err)
	}
	c.fails("the Host host1 does not exist", "host", "remove", "host1")
}

// cli is a user's Bowline, with its own home and no terminal.
type cli struct {
	p       *pooled
	program string
}

func (p *pooled) cli() *cli {
	p.t.Helper()
	program, err := labtest.BuiltBowline()
	testutil.Must(p.t, err)
	return &cli{p, program}
}

// run runs a command, and repeats it if the machine was too slow: the command's message then says
// to run it again.
func (c *cli) run(args ...string) (out labtest.Output) {
	c.p.t.Helper()
	for range 5 {
		cmd := exec.CommandContext(c.p.t.Context(), c.program, args...)
		cmd.Env = append(os.Environ(), "KUBECONFIG="+c.p.lab.Status.Cluster.AdminKubeconfig, "HOME="+c.p.lab.Dir, "SSH_AUTH_SOCK=")
		var err error
		out, err = labtest.Capture(cmd)
		testutil.Must(c.p.t, err)
		slow := false
		for _, words := range []string{"deadline exceeded", "no answer", "unreachable", "does not answer any more", "in time", "handshake timeout"} {
			slow = slow || strings.Contains(out.Stdout+out.Stderr, words)
		}
		if out.Code == 0 || !slow {
			break
		}
		c.p.t.Logf("bowline %s: too slow: %s%s", strings.Join(args, " "), out.Stdout, out.Stderr)
	}
	return out
}

// plugin runs a command as a kubectl plugin.
func (c *cli) plugin(args ...string) string {
	c.p.t.Helper()
	dir := filepath.Join(c.p.lab.Dir, "plugin")
	testutil.Must(c.p.t, os.MkdirAll(dir, 0o755))
	program, err := filepath.Abs(c.program)
	testutil.Must(c.p.t, err)
	if err := os.Symlink(program, filepath.Join(dir, "kubectl-bowline")); !os.IsExist(err) {
		testutil.Must(c.p.t, err)
	}
	cmd := c.p.lab.Command(c.p.t.Context(), append([]string{"kubectl", "bowline"}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	out, err := labtest.Capture(cmd)
	testutil.Must(c.p.t, err)
	if out.Code != 0 {
		c.p.t.Fatalf("kubectl bowline %s: exit code %d: %s%s", strings.Join(args, " "), out.Code, out.Stdout, out.Stderr)
	}
	return out.Stdout
}

// runs runs a command that must succeed, and returns its output.
func (c *cli) runs(args ...string) string {
	c.p.t.Helper()
	began := time.Now()
	out := c.run(args...)
	if out.Code != 0 {
		c.p.t.Fatalf("bowline %s: exit code %d: %s%s\n%s", strings.Join(args, " "), out.Code, out.Stdout, out.Stderr, c.p.bowline.LogTail(4000))
	}
	c.p.t.Logf("bowline %s: %s", strings.Join(args[:2], " "), time.Since(began).Round(time.Millisecond))
	return out.Stdout
}

// fails runs a command that must fail with these words, and returns its output before that.
func (c *cli) fails(words string, args ...string) string {
	c.p.t.Helper()
	out := c.run(args...)
	if out.Code != 1 || !strings.Contains(out.Stderr, words) {
		c.p.t.Fatalf("bowline %s: exit code %d: %s%s", strings.Join(args, " "), out.Code, out.Stdout, out.Stderr)
	}
	return out.Stdout
}
