package release

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

var lab *labtest.Lab

func TestMain(m *testing.M) {
	labtest.Main(m, "bowline-release", 2, func(l *labtest.Lab) (int, error) {
		lab = l
		return m.Run(), nil
	})
}

func TestLocal(t *testing.T)  { handOver(t, "host1", false) }
func TestRemote(t *testing.T) { handOver(t, "host2", true) }

// way runs "bowline host ..." for a machine, locally or from outside over SSH.
type way struct {
	box    *box
	remote bool
}

func (w way) host(t *testing.T, verb string, flags ...string) labtest.Output {
	t.Helper()
	program, err := labtest.BuiltBowline()
	testutil.Must(t, err)
	var all labtest.Output
	for {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		out, err := labtest.Capture(w.command(t, ctx, append([]string{program, "host", verb}, flags...)))
		cancel()
		testutil.Must(t, err)
		t.Logf("bowline host %s %q: exit code %d after %s\n%s%s", verb, flags, out.Code, out.Took.Round(10*time.Millisecond), out.Stdout, out.Stderr)
		all.Stdout, all.Stderr, all.Code, all.Took = all.Stdout+out.Stdout, all.Stderr+out.Stderr, out.Code, all.Took+out.Took
		// A machine under load may answer too late. Repeat a command that was cut off, as its
		// message tells a user to do.
		if !w.remote || out.Code == 0 || all.Took > 5*time.Minute || !slices.ContainsFunc(tooLate, func(s string) bool {
			return strings.Contains(out.Stdout+out.Stderr, s)
		}) {
			return all
		}
	}
}

var tooLate = []string{"deadline exceeded", "no answer", "unreachable", "the host answered at first, but does not answer any more", "the second failed"}

func (w way) command(t *testing.T, ctx context.Context, argv []string) *exec.Cmd {
	t.Helper()
	h := w.box.lab.Host(w.box.name)
	if !w.remote {
		cmd := w.box.lab.Exec(ctx, w.box.name, append(argv, "unix://"+h.RuntimeSocket)...)
		cmd.Env = append(os.Environ(), "PATH="+defaultPath)
		return cmd
	}
	key := testutil.ReadFile(t, h.SSH.HostKey)
	argv = append(argv, "--identity-file", h.SSH.Key, "--host-key", strings.TrimSpace(string(key)),
		fmt.Sprintf("ssh://%s@%s%s", h.SSH.User, h.SSH.Address, h.RuntimeSocket))
	return exec.CommandContext(ctx, argv[0], argv[1:]...)
}

// wants checks the exit code and that the output contains these words.
func wants(t *testing.T, out labtest.Output, code int, words ...string) {
	t.Helper()
	if out.Code != code {
		t.Errorf("exit code %d, not %d", out.Code, code)
	}
	for _, word := range words {
		if !strings.Contains(out.Stdout+out.Stderr, word) {
			t.Errorf("%q is not said", word)
		}
	}
}

func handOver(t *testing.T, name string, remote bool) {
	labtest.NeedLab(t)
	ctx := t.Context()
	b := newBox(t, lab, name)
	w := way{b, remote}
	runtime, err := lab.CRI(ctx, name)
	testutil.Must(t, err)
	defer runtime.Close()
	serves(t, runtime)
	foreign := newCanary(t, runtime)
	b.in(t, "sh", "-c", "echo 0 >/proc/sys/net/ipv4/ip_forward")
	pods, err := lab.Snapshot(ctx, runtime, name)
	testutil.Must(t, err)

	// Docker's package leaves a machine like this: it cannot be a node.
	b.setCRI(t, false)
	before := b.state(t)
	wants(t, w.host(t, "check"), 1, "CRI plugin disabled", "ip_forward=0")

	// A dry run shows the changes and makes none.
	wants(t, w.host(t, "prepare", "--dry-run", "--node-name", name), 0,
		`- disabled_plugins = ["io.containerd.grpc.v1.cri"]`, "+ disabled_plugins = []", "containerd restarts", "+ net.ipv4.ip_forward=1")
	if diff := cmp.Diff(before, b.state(t)); diff != "" {
		t.Fatalf("--dry-run has changed the machine:\n%s", diff)
	}
	// Without an answer nothing is done.
	wants(t, w.host(t, "prepare", "--node-name", name), 1, "nothing was changed")
	if diff := cmp.Diff(before, b.state(t)); diff != "" {
		t.Fatalf("unanswered, it has changed the machine:\n%s", diff)
	}

	wants(t, w.host(t, "prepare", "--yes", "--node-name", name), 0, "new file /etc/cni/net.d/90-bowline.conflist")
	wants(t, w.host(t, "check"), 0)
	wants(t, w.host(t, "prepare", "--dry-run"), 0, "There is nothing to fix")
	foreign.unharmed(t, "after prepare")

	manage(t, w)
	foreign.unharmed(t, "beside pods")

	flags := []string{}
	if remote {
		flags = append(flags, "--kubeconfig", lab.Status.Cluster.AdminKubeconfig)
	}
	wants(t, w.host(t, "release", flags...), 0, "node \""+name+"\" of cluster", "stopping default/"+name, "removed /etc/cni/net.d/90-bowline.conflist", "Nothing of Bowline is left")
	if diff := cmp.Diff(before, b.state(t)); diff != "" {
		t.Errorf("the machine is not as it was:\n%s", diff)
	}
	if data, err := os.ReadFile(shared(name) + "/said"); err != nil || string(data) != "bye\n" {
		t.Errorf("the preStop hook has left %q, %v", data, err)
	}
	_, err = lab.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) != remote {
		t.Errorf("the node: %v", err)
	}
	_, err = lab.Client.CoreV1().Pods("default").Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) != remote {
		t.Errorf("the pod: %v", err)
	}

	// With the CRI enabled again, the machine is as it was too.
	b.setCRI(t, true)
	serves(t, runtime)
	foreign.unharmed(t, "after release")
	testutil.Must(t, oracle.NothingLeft(ctx, lab, runtime, name, pods, time.Minute))
	// There is nothing left to release.
	wants(t, w.host(t, "release"), 0, "no node of Bowline", "Nothing of Bowline is left")
	foreign.unharmed(t, "after another release")
	if b.restarts != 2 {
		t.Errorf("containerd was restarted %d times, not once by prepare and once by release", b.restarts)
	}
}

// shared is a directory that a pod writes to by hostPath.
func shared(name string) string { return filepath.Join(lab.Dir, name+"-shared") }

// manage makes the machine a node, runs a pod on it, and stops the driver.
func manage(t *testing.T, w way) {
	t.Helper()
	ctx, name := t.Context(), w.box.name
	testutil.Must(t, os.Mkdir(shared(name), 0o777))
	var extra []string
	driver := &labtest.Bowline{Lab: lab, Host: name, Args: []string{"-v=2"}}
	if w.remote {
		wire, err := labtest.NewWire(lab.Host(name).SSH.Address)
		testutil.Must(t, err)
		defer wire.Close()
		driver.Wire = wire
		lines, err := lab.SSHLines(name, wire.Address())
		testutil.Must(t, err)
		extra = append(extra, lines...)
	}
	var err error
	driver.Config, err = lab.WriteConfig(name, extra...)
	testutil.Must(t, err)
	testutil.Must(t, driver.Start())
	defer driver.Kill()
	_, err = lab.NodeReady(ctx, name, v1.ConditionTrue, 2*time.Minute)
	if err != nil {
		t.Fatalf("%v\n%s", err, driver.LogTail(4000))
	}
	_, err = lab.Client.CoreV1().ConfigMaps("default").Create(ctx, &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"k": "v"}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	p := &v1.Pod{}
	testutil.Must(t, yaml.UnmarshalStrict([]byte(strings.NewReplacer("$NAME", name, "$DIR", shared(name), "$IMAGE", image).Replace(`
metadata: {name: $NAME}
spec:
  nodeName: $NAME
  terminationGracePeriodSeconds: 5
  containers:
  - name: main
    image: $IMAGE
    command: [sleep, "36000"]
    lifecycle: {preStop: {exec: {command: [sh, -c, echo bye >/shared/said]}}}
    volumeMounts:
    - {name: objects, mountPath: /objects}
    - {name: memory, mountPath: /memory}
    - {name: shared, mountPath: /shared}
  volumes:
  - {name: objects, configMap: {name: $NAME}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}
  - {name: shared, hostPath: {path: $DIR}}
`)), p))
	testutil.Must(t, labtest.Until(ctx, 90*time.Second, "the default service account", func(ctx context.Context) error {
		_, err := lab.Client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	}))
	_, err = lab.Client.CoreV1().Pods("default").Create(ctx, p, metav1.CreateOptions{})
	testutil.Must(t, err)
	if _, err := lab.PodReady(ctx, "default", name, 2*time.Minute); err != nil {
		t.Fatalf("%v\n%s", err, driver.LogTail(4000))
	}
	if w.remote {
		noCredential(t, w.box)
	}
	// A managed machine cannot be released.
	wants(t, w.host(t, "release"), 1, "another Bowline manages this host", fmt.Sprint(driver.PID()))
	testutil.Must(t, driver.Stop())
}

// noCredential checks that the key of the node's credential is nowhere among the pod's volumes on
// the machine.
func noCredential(t *testing.T, b *box) {
	t.Helper()
	c, err := clientcmd.BuildConfigFromFlags("", b.lab.Host(b.name).NodeKubeconfig)
	testutil.Must(t, err)
	testutil.Must(t, rest.LoadTLSFiles(c))
	lines := strings.Split(strings.TrimSpace(string(c.KeyData)), "\n")
	if len(lines) < 3 || len(lines[1]) < 40 {
		t.Fatalf("the node's key has %d lines", len(lines))
	}
	look := func(what string) string {
		return b.in(t, "sh", "-c", `grep -rlsF -e "$1" /etc /var/lib/kubelet /var/log/pods || true`, "sh", what)
	}
	if found := look(lines[1]); found != "" {
		t.Errorf("the node's key is on the machine: %s", found)
	}
	if !strings.Contains(look(`"nodeName"`), "/var/lib/kubelet/bowline/owner") {
		t.Error("the search would not find it")
	}
}
