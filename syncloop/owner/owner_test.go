package owner

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// listed is a runtime with these sandboxes.
type listed struct {
	mu        sync.Mutex
	sandboxes []*runtimeapi.PodSandbox
	err       error
}

func (l *listed) ListPodSandbox(context.Context, *runtimeapi.PodSandboxFilter) ([]*runtimeapi.PodSandbox, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sandboxes, l.err
}

func (l *listed) set(err error, sandboxes ...*runtimeapi.PodSandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sandboxes, l.err = sandboxes, err
}

func sandbox(name string, labels map[string]string) *runtimeapi.PodSandbox {
	return &runtimeapi.PodSandbox{Id: "id-" + name, Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "default", Name: name},
		State: runtimeapi.PodSandboxState_SANDBOX_READY, Labels: labels}
}

var (
	kubelets = sandbox("canary", map[string]string{pod.LabelPodUID: "u"})
	ours     = sandbox("ours", map[string]string{pod.LabelPodUID: "u", pod.LabelOwner: self.Stamp()})
	theirs   = sandbox("theirs", map[string]string{pod.LabelPodUID: "u", pod.LabelOwner: elsewhere.Stamp()})
)

const childEnv = "BOWLINE_OWNER_TEST_DIR"

// TestMain also runs the second process, which claims the directory and waits to be killed.
func TestMain(m *testing.M) {
	dir := os.Getenv(childEnv)
	if dir == "" {
		os.Exit(m.Run())
	}
	h, err := local.New(local.Config{})
	if err == nil {
		c := configIn(dir, h, &listed{})
		c.Instance, c.PID = "child", os.Getpid()
		_, err = Take(context.Background(), c)
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("claimed")
	io.Copy(io.Discard, os.Stdin)
	os.Exit(0)
}

func configIn(dir string, h Host, r Runtime) Config {
	return Config{Host: h, Runtime: r, RootDir: dir + "/root", RunDir: dir + "/run", Endpoint: "/run/containerd/containerd.sock",
		ClusterUID: self.ClusterUID, NodeName: self.NodeName, Instance: "parent", Version: "v1", PID: 42, StartedAt: time.Unix(1, 0)}
}

func newHost(t *testing.T) host.Host {
	t.Helper()
	h, err := local.New(local.Config{LockCheck: 10 * time.Millisecond})
	testutil.Must(t, err)
	return h
}

// snapshot returns every file below dir with its content.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		st, err := d.Info()
		if err != nil {
			return err
		}
		files[rel] = st.Mode().String()
		if st.Mode().IsRegular() {
			data, err := os.ReadFile(p)
			files[rel] += " " + string(data)
			return err
		}
		return nil
	})
	testutil.Must(t, err)
	return files
}

func wantRefused(t *testing.T, err error, k Kind, words ...string) {
	t.Helper()
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Decision.Kind != k {
		t.Fatalf("error %v, want a refusal of kind %s", err, k)
	}
	for _, w := range words {
		if !strings.Contains(err.Error()+"\n"+hint.Of(err), w) {
			t.Errorf("the refusal %q does not say %q", err, w)
		}
	}
}

func take(t *testing.T, c Config) *Claim {
	t.Helper()
	claim, err := Take(context.Background(), c)
	testutil.Must(t, err)
	t.Cleanup(func() { claim.Release(context.Background()) })
	return claim
}

func TestLifeOfAClaim(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	r := &listed{}
	c := configIn(dir, newHost(t), r)
	before := snapshot(t, dir)

	claim := take(t, c)
	if claim.Stamp() != "c1/n1" {
		t.Errorf("stamp %q", claim.Stamp())
	}
	data := testutil.ReadFile(t, dir+"/root/bowline/owner")
	if rec, err := ParseRecord(data); err != nil || rec.Identity != self || rec.Instance != "parent" || rec.PID != 42 {
		t.Errorf("the owner file is %s", data)
	}
	_, err := Take(ctx, c)
	wantRefused(t, err, HeldByOther, `node "n1"`, "c1", "parent", "pid 42", "1970-01-01T00:00:01Z")

	// If a pod of ours is left, the file stays and keeps another cluster away.
	r.set(nil, ours)
	testutil.Must(t, claim.Release(ctx))
	other := c
	other.ClusterUID = "c2"
	_, err = Take(ctx, other)
	wantRefused(t, err, OtherCluster, "c1", "c2", dir+"/root/bowline/owner")
	neighbours := c
	neighbours.NodeName = "n2"
	_, err = Take(ctx, neighbours)
	wantRefused(t, err, OtherNode, `"n1"`, `"n2"`)

	// The next process of the same node adopts it.
	claim = take(t, c)
	if f := claim.Found(); f.Ours != 1 || f.Foreign != 0 {
		t.Errorf("found %+v", f)
	}
	r.set(errors.New("the runtime is away"))
	if err := claim.Release(ctx); err == nil || !strings.Contains(err.Error(), "the runtime is away") {
		t.Errorf("released with %v", err)
	}
	if _, err := os.Stat(dir + "/root/bowline/owner"); err != nil {
		t.Errorf("the owner file went though no one knows what is left: %v", err)
	}
	r.set(nil)
	claim = take(t, c)
	for range 2 {
		testutil.Must(t, claim.Release(ctx))
	}
	// The runtime is empty again: nothing is left but the root, which existed before this claim.
	if err := os.Remove(dir + "/root"); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("left behind: %s", diff)
	}
}

// TestRefusalLeavesNoTrace: whatever the reason, a refusal leaves the host as it was.
func TestRefusalLeavesNoTrace(t *testing.T) {
	for name, c := range map[string]struct {
		files     map[string]string
		sandboxes []*runtimeapi.PodSandbox
		kind      Kind
		words     string
	}{
		"a kubelet, no root":    {nil, []*runtimeapi.PodSandbox{kubelets}, KubeletManages, "default/canary"},
		"a kubelet":             {map[string]string{"root/pods/u/etc-hosts": "x"}, []*runtimeapi.PodSandbox{kubelets, ours}, KubeletManages, "default/canary"},
		"another's sandbox":     {nil, []*runtimeapi.PodSandbox{theirs}, OtherSandbox, "c2"},
		"another's owner file":  {map[string]string{"root/bowline/owner": string(record(elsewhere).bytes())}, nil, OtherCluster, "c2"},
		"our file, a kubelet":   {map[string]string{"root/bowline/owner": string(record(self).bytes())}, []*runtimeapi.PodSandbox{kubelets}, KubeletManages, "canary"},
		"a newer owner file":    {map[string]string{"root/bowline/owner": `{"schemaVersion": 2, "clusterUID": "c1", "nodeName": "n1", "more": 1}`}, []*runtimeapi.PodSandbox{ours}, FileNewer, "run the newer Bowline"},
		"not an owner file":     {map[string]string{"root/bowline/owner": "hello"}, nil, FileUnclear, "remove it"},
		"a file and no sandbox": {map[string]string{"root/bowline/owner": string(record(neighbour).bytes())}, nil, OtherNode, "n2"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for p, content := range c.files {
				testutil.Must(t, errors.Join(os.MkdirAll(filepath.Dir(dir+"/"+p), 0o755), os.WriteFile(dir+"/"+p, []byte(content), 0o600)))
			}
			before := snapshot(t, dir)
			r := &listed{sandboxes: c.sandboxes}
			_, err := Take(context.Background(), configIn(dir, newHost(t), r))
			wantRefused(t, err, c.kind, c.words)
			if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
				t.Errorf("a refusal changed the machine: %s", diff)
			}
		})
	}
}

// readOnly is a host that must not be written to.
type readOnly struct {
	Host
	t *testing.T
}

func (r readOnly) WriteFile(context.Context, string, []byte, fs.FileMode) error {
	r.t.Error("a file was written")
	return errors.ErrUnsupported
}

func (r readOnly) Lock(context.Context, string, []byte) (host.Lock, error) {
	r.t.Error("a lock was taken")
	return nil, errors.ErrUnsupported
}

// TestLooksFirst: on a host without Bowline's directory nothing is written before the look at the
// runtime, not even for a moment.
func TestLooksFirst(t *testing.T) {
	c := configIn(t.TempDir(), readOnly{newHost(t), t}, &listed{sandboxes: []*runtimeapi.PodSandbox{kubelets}})
	_, err := Take(context.Background(), c)
	wantRefused(t, err, KubeletManages)
}

func TestAllowForeignPods(t *testing.T) {
	dir := t.TempDir()
	r := &listed{sandboxes: []*runtimeapi.PodSandbox{kubelets, ours}}
	c := configIn(dir, newHost(t), r)
	c.AllowForeignPods = true
	claim := take(t, c)
	if f := claim.Found(); f.Ours != 1 || f.Foreign != 1 {
		t.Errorf("found %+v", f)
	}
	r.set(nil, kubelets)
	testutil.Must(t, claim.Release(context.Background()))
	if _, err := os.Stat(dir + "/root/bowline"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the owner file stays for a foreign pod: %v", err)
	}
	// AllowForeignPods does not allow another Bowline's pods.
	r.set(nil, theirs)
	_, err := Take(context.Background(), c)
	wantRefused(t, err, OtherSandbox, "default/theirs")
}

// TestOneRuntimeTwoRoots: the lock of the socket refuses a second root on the same socket, which
// leaves no trace.
func TestOneRuntimeTwoRoots(t *testing.T) {
	dir := t.TempDir()
	c := configIn(dir, newHost(t), &listed{})
	take(t, c)
	before := snapshot(t, dir)
	second := c
	second.RootDir, second.Instance = dir+"/another", "second"
	_, err := Take(context.Background(), second)
	wantRefused(t, err, HeldByOther, dir+"/run/run-containerd-containerd.sock.lock", "parent")
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("a refusal changed the machine: %s", diff)
	}
	second.Endpoint = "/run/other.sock"
	take(t, second)
}

func TestRuntimeAway(t *testing.T) {
	dir := t.TempDir()
	before := snapshot(t, dir)
	away := errors.New("no answer")
	_, err := Take(context.Background(), configIn(dir, newHost(t), &listed{err: away}))
	var refused *RefusedError
	if !errors.Is(err, away) || errors.As(err, &refused) {
		t.Errorf("error %v; not knowing is no refusal", err)
	}
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("the attempt changed the machine: %s", diff)
	}
}

func TestLost(t *testing.T) {
	dir := t.TempDir()
	claim := take(t, configIn(dir, newHost(t), &listed{}))
	select {
	case <-claim.Lost():
		t.Fatal("lost at once")
	default:
	}
	testutil.Must(t, os.Remove(dir+"/run/run-containerd-containerd.sock.lock"))
	select {
	case <-claim.Lost():
	case <-time.After(20 * time.Second):
		t.Fatal("not lost, though anybody could take the lock")
	}
	if err := claim.Release(context.Background()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + "/root/bowline/owner"); err != nil {
		t.Errorf("a lost claim removed the owner file: %v", err)
	}
}

// TestKilledProcess: a live process keeps us out and says who it is; after SIGKILL it does not.
func TestKilledProcess(t *testing.T) {
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+dir)
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	defer in.Close()
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err)
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "claimed\n" {
		t.Fatalf("the second process says %q, %v", line, err)
	}
	r := &listed{sandboxes: []*runtimeapi.PodSandbox{ours}}
	c := configIn(dir, newHost(t), r)
	before := snapshot(t, dir)
	_, err = Take(context.Background(), c)
	wantRefused(t, err, HeldByOther, "instance child", fmt.Sprintf("pid %d", cmd.Process.Pid))
	if diff := cmp.Diff(before, snapshot(t, dir)); diff != "" {
		t.Errorf("a refusal changed the machine: %s", diff)
	}
	testutil.Must(t, cmd.Process.Kill())
	cmd.Wait()
	claim := take(t, c)
	if claim.Found().Ours != 1 {
		t.Errorf("found %+v", claim.Found())
	}
}

func TestConfigIsChecked(t *testing.T) {
	good := configIn(t.TempDir(), newHost(t), &listed{})
	for name, spoil := range map[string]func(*Config){
		"host": func(c *Config) { c.Host = nil }, "runtime": func(c *Config) { c.Runtime = nil },
		"root": func(c *Config) { c.RootDir = "x" }, "cluster": func(c *Config) { c.ClusterUID = "" },
		"slash": func(c *Config) { c.ClusterUID = "a/b" }, "node": func(c *Config) { c.NodeName = "" }, "instance": func(c *Config) { c.Instance = "" },
	} {
		c := good
		spoil(&c)
		if _, err := Take(context.Background(), c); err == nil {
			t.Errorf("without a proper %s it was taken", name)
		}
	}
}
