package e2e

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// host is the lab host that all tests use, and its node's name.
const host = "host1"

const (
	toolbox = "registry.lab/toolbox:lab"
	webV1   = "registry.lab/web:v1"
	webV2   = "registry.lab/web:v2"
)

// remote makes the suite use a Bowline beside the host, which manages it over SSH.
var remote = os.Getenv("BOWLINE_E2E_HOST") == "ssh"

// part is the part of the suite that this process runs, "serial" or "parallel", with its own lab;
// by default it runs both.
var part = os.Getenv("BOWLINE_E2E_PART")

// seed chooses for each test whether it runs locally or over SSH; without a seed, it runs on both.
var seed = os.Getenv("BOWLINE_TEST_SEED")

// full also runs, over SSH, the tests that do not depend on the link.
var full = os.Getenv("BOWLINE_E2E_FULL") != ""

// local has the names of the tests that run locally only.
var local sync.Map

// onlyLocal is called before serial or parallel by a test that has nothing to do over SSH, and says
// why.
func onlyLocal(t *testing.T, why string) {
	t.Helper()
	if remote {
		t.Skip(why)
	}
	local.Store(t.Name(), nil)
}

// chosen skips a test that the seed has run on the other kind of host.
func chosen(t *testing.T) {
	t.Helper()
	if _, always := local.Load(t.Name()); always || seed == "" {
		return
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, seed+" "+t.Name())
	if here := h.Sum32()>>31 == 0; here != remote {
		t.Skip("BOWLINE_TEST_SEED=" + seed + " chooses the other kind of host for it")
	}
}

// serial is called by a test that needs the lab's node for itself: it stops Bowline, breaks
// its link or counts everything on the machine.
func serial(t *testing.T) {
	t.Helper()
	labtest.NeedLab(t)
	if part == "parallel" {
		t.Skip("the serial part runs it")
	}
	chosen(t)
}

// parallel is called by a test that runs concurrently with others on the lab's node, or has its own
// lab.
func parallel(t *testing.T) {
	t.Helper()
	labtest.NeedLab(t)
	if part == "serial" {
		t.Skip("the parallel part runs it")
	}
	chosen(t)
	t.Parallel()
}

func onlyRemote(t *testing.T) {
	t.Helper()
	if !remote {
		t.Skip("only for a remote host")
	}
}

// withOwnLab are the tests with a lab of their own, the longest first. A seed chooses every second one.
var withOwnLab = []string{"TestHostObjects", "TestHostAdd", "TestAnotherMachine", "TestPressure", "TestReplicas", "TestNodeLogsOfTwoNodes",
	"TestConfigurationTakesEffect", "TestOneProcessManyHosts", "TestStrategiesWithoutWatch", "TestNodeAdmission"}

// inHalf skips a test with its own lab that is not in the half that the seed chooses.
func inHalf(t *testing.T) {
	t.Helper()
	i := slices.Index(withOwnLab, t.Name())
	if i < 0 {
		t.Fatal("add the test to withOwnLab")
	}
	h := fnv.New32a()
	_, _ = io.WriteString(h, seed)
	if seed != "" && (int(h.Sum32()>>16)+i)%2 == 0 {
		t.Skip("BOWLINE_TEST_SEED=" + seed + " chooses the other half of the tests with their own lab")
	}
}

// labs bounds the concurrent labs of tests with their own lab: each has a control plane and takes
// about 16 of the 128 inotify instances that Linux gives a user. BOWLINE_E2E_LABS=1 allows one.
var labs = make(chan struct{}, map[string]int{"1": 1, "": 2}[os.Getenv("BOWLINE_E2E_LABS")])

// ownLab starts a lab for this test alone. The lab ends with the test.
func ownLab(t *testing.T, hosts int, flags ...string) *labtest.Lab {
	t.Helper()
	inHalf(t)
	select {
	case labs <- struct{}{}:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
	t.Cleanup(func() { <-labs })
	return labtest.StartFor(t, filepath.Join(labtest.Dir(t, "bowline-e2e", false), "lab"), hosts, flags...)
}

// The fixtures that TestMain brings up for all tests.
var (
	lab     *labtest.Lab
	bowline *labtest.Bowline
	wire    *labtest.Wire // to a remote host's sshd; nil: the host is local
	runtime *cri.Client   // a second client beside Bowline's, from outside the host
	static  staticPods    // the node's static pods
)

func TestMain(m *testing.M) {
	labtest.Main(m, "bowline-e2e", 1, func(l *labtest.Lab) (int, error) {
		lab = l
		return runAll(m)
	})
}

func runAll(m *testing.M) (code int, err error) {
	ctx := context.Background()
	if runtime, err = lab.CRI(ctx, host); err != nil {
		return 1, err
	}
	defer runtime.Close()
	if remote {
		if wire, err = lab.NewWire(host); err != nil {
			return 1, err
		}
		defer wire.Close()
	}
	if err := static.serve(lab); err != nil {
		return 1, err
	}
	defer static.server.Close()
	bowline = &labtest.Bowline{Lab: lab, Host: host, Wire: wire, Args: []string{"-v=2"}, Extra: append(static.lines(), "enableSystemLogQuery: true")}
	if remote {
		bowline.Apart = &labtest.Apart{Ports: []string{static.port()}}
	}
	if err := bowline.Start(); err != nil {
		return 1, err
	}
	defer func() {
		if remote && bowline.Running() {
			if canaryErr := labtest.CheckCanaries(bowline.PID()); canaryErr != nil && err == nil {
				err = canaryErr
			}
		}
		if stopErr := bowline.Stop(); stopErr != nil && err == nil {
			err = stopErr
		}
		if code != 0 {
			keepLog()
		}
	}()
	if _, err := lab.NodeReady(ctx, host, v1.ConditionTrue, 2*time.Minute); err != nil {
		return 1, fmt.Errorf("%w\n%s", err, bowline.LogTail(8000))
	}
	if _, err := lab.ReadyPods(ctx, "kube-system", "k8s-app=kube-dns", 1, 60*time.Second); err != nil {
		return 1, err
	}
	return m.Run(), nil
}

// keepLog saves Bowline's log before the lab is removed, for a failed run.
func keepLog() {
	data, err := os.ReadFile(bowline.LogPath)
	if err != nil {
		fmt.Println(err)
		return
	}
	kept, err := os.CreateTemp("", "bowline-e2e-*.log")
	if err == nil {
		_, err = kept.Write(data)
		err = errors.Join(err, kept.Close())
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("Bowline's log is kept in %s; it ends:\n%s\n", kept.Name(), data[max(0, len(data)-4000):])
}

// namespace makes a namespace for the test. It is deleted when the test ends, without waiting.
func namespace(t *testing.T) string {
	t.Helper()
	// After an outage of the API server the controller manager's watches may be in back-off for
	// this long.
	ns, err := labtest.Namespace(t.Context(), lab.Client, "e2e-", 90*time.Second)
	testutil.Must(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			logNamespace(t, ns)
		}
		if t.Failed() && os.Getenv("BOWLINE_E2E_KEEP") != "" {
			return
		}
		_ = lab.Client.CoreV1().Namespaces().Delete(context.Background(), ns, metav1.DeleteOptions{})
	})
	return ns
}

// logNamespace logs what happened in a namespace, for a failed test.
func logNamespace(t *testing.T, ns string) {
	t.Helper()
	ctx := context.Background()
	if events, err := lab.Client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{}); err == nil {
		for _, e := range events.Items {
			if e.Type == v1.EventTypeWarning || e.Reason == "Killing" {
				t.Logf("%s to %s, %d times, %s: %s: %s", e.FirstTimestamp.Format(time.TimeOnly), e.LastTimestamp.Format(time.TimeOnly),
					e.Count, e.InvolvedObject.Name, e.Reason, e.Message)
			}
		}
	}
	if pods, err := lab.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{}); err == nil {
		for i := range pods.Items {
			t.Log(labtest.Describe(&pods.Items[i]))
		}
	}
}

// manifest parses one object strictly. $NS, $TOOLBOX and $WEB stand for the namespace and the
// images.
func manifest[T any](t *testing.T, ns, text string) *T {
	t.Helper()
	text = expand(ns, text)
	object := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), object); err != nil {
		t.Fatalf("manifest: %v\n%s", err, text)
	}
	return object
}

// create makes a pod from YAML of its metadata and spec.
func create(t *testing.T, ns, text string) *v1.Pod {
	t.Helper()
	p, err := lab.Client.CoreV1().Pods(ns).Create(t.Context(), manifest[v1.Pod](t, ns, text), metav1.CreateOptions{})
	testutil.Must(t, err)
	return p
}

// brief is a pod with a grace period of one second; spec is the rest of its spec.
func brief(name, spec string) string {
	return "metadata: {name: " + name + "}\nspec:\n  terminationGracePeriodSeconds: 1\n  " + strings.TrimSpace(spec) + "\n"
}

func podThatSleeps(name string) string {
	return brief(name, "containers: [{name: main, image: $TOOLBOX, command: [sleep, inf]}]")
}

// patience bounds a wait for what happens within seconds on a quiet machine. It only ends a test that
// hangs: five labs on a slow machine have taken a minute for the start of five pods.
const patience = 3 * time.Minute

// ready waits for a pod to be Ready.
func ready(t *testing.T, ns, name string) *v1.Pod {
	t.Helper()
	return readyWithin(t, patience, ns, name)
}

func readyWithin(t *testing.T, limit time.Duration, ns, name string) *v1.Pod {
	t.Helper()
	p, err := lab.PodReady(t.Context(), ns, name, limit)
	testutil.Must(t, err)
	return p
}

// readyPods waits until an app has exactly n pods, all Ready.
func readyPods(t *testing.T, ns, app string, n int) []v1.Pod {
	t.Helper()
	pods, err := lab.ReadyPods(t.Context(), ns, "app="+app, n, patience)
	testutil.Must(t, err)
	return pods
}

// podIs waits until a condition, which what names, holds for a pod.
func podIs(t *testing.T, ns, name string, limit time.Duration, what string, condition func(*v1.Pod) error) *v1.Pod {
	t.Helper()
	p, err := lab.Pod(t.Context(), ns, name, limit, what, condition)
	testutil.Must(t, err)
	return p
}

func getPod(t *testing.T, ns, name string) *v1.Pod {
	t.Helper()
	p, err := lab.Client.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
	testutil.Must(t, err)
	return p
}

// deletePod deletes a pod and waits until it is gone from the API.
func deletePod(t *testing.T, ns, name string, options metav1.DeleteOptions, limit time.Duration) {
	t.Helper()
	testutil.Must(t, lab.Client.CoreV1().Pods(ns).Delete(t.Context(), name, options))
	testutil.Must(t, lab.PodGone(t.Context(), ns, name, limit))
}

// getNode returns the node of a lab's host.
func getNode(t *testing.T, l *labtest.Lab) *v1.Node {
	t.Helper()
	node, err := l.Client.CoreV1().Nodes().Get(t.Context(), host, metav1.GetOptions{})
	testutil.Must(t, err)
	return node
}

// ended waits for a pod's final phase.
func ended(t *testing.T, ns, name string, phase v1.PodPhase) *v1.Pod {
	t.Helper()
	return podIs(t, ns, name, patience, string(phase), func(p *v1.Pod) error {
		if p.Status.Phase != phase {
			return fmt.Errorf("it is %s", p.Status.Phase)
		}
		return nil
	})
}

// until polls for a condition, up to patience.
func until(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	testutil.Must(t, labtest.Until(t.Context(), patience, what, condition))
}

// kubectl runs kubectl and fails the test if it fails.
func kubectl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := lab.Kubectl(t.Context(), args...)
	testutil.Must(t, err)
	if out.Code != 0 {
		t.Fatalf("kubectl %s: exit code %d: %s%s", strings.Join(args, " "), out.Code, out.Stdout, out.Stderr)
	}
	return out.Stdout
}

// inPod runs a script in a container and returns what it prints.
func inPod(t *testing.T, ns, pod, script string) string {
	t.Helper()
	return strings.TrimSpace(kubectl(t, "exec", "-n", ns, pod, "--", "sh", "-c", script))
}

// logs returns the log of a container, up to its end or until now.
func logs(t *testing.T, ns, pod string, flags ...string) string {
	t.Helper()
	return kubectl(t, append([]string{"logs", "-n", ns, pod}, flags...)...)
}

// readLogs is logs for a condition that is polled: a node may fail to answer once.
func readLogs(ctx context.Context, ns, pod string, flags ...string) (string, error) {
	out, err := lab.Kubectl(ctx, append([]string{"logs", "-n", ns, pod}, flags...)...)
	if err == nil && out.Code != 0 {
		err = fmt.Errorf("kubectl logs: exit code %d: %s", out.Code, out.Stderr)
	}
	return out.Stdout, err
}

// hostDir is a directory shared by the tests, the host and pods with hostPath.
func hostDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(lab.Dir, "shared")
	testutil.Must(t, err)
	testutil.Must(t, os.Chmod(dir, 0o777))
	return dir
}

// onHost runs a command on the lab's host, even while the test ends.
func onHost(t *testing.T, args ...string) {
	t.Helper()
	if out, err := lab.Exec(context.Background(), host, args...).CombinedOutput(); err != nil {
		t.Errorf("%v: %v: %s", args, err, out)
	}
}

// starts counts the lines of a file in a shared directory: containers append one
// each time they start.
func starts(t *testing.T, dir, name string) int {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(dir, name))
	if os.IsNotExist(err) {
		return 0
	}
	testutil.Must(t, err)
	return strings.Count(string(data), "\n")
}

func startedOnce(t *testing.T, dir, name string) {
	t.Helper()
	equal(t, "starts of "+name, starts(t, dir, name), 1)
}

// equal fails the test if got is not want; what names the value.
func equal[T comparable](t *testing.T, what string, got, want T) {
	t.Helper()
	if got != want {
		t.Errorf("%s: %#v, not %#v", what, got, want)
	}
}

// contains fails the test for each word that the text lacks; what names the text.
func contains(t *testing.T, what, text string, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(text, word) {
			t.Errorf("%s: there is no %q in %q", what, word, text)
		}
	}
}

// event waits for an event about a pod with this reason and returns its message.
func event(t *testing.T, ns, pod, reason string) string {
	t.Helper()
	var message string
	until(t, "event "+reason+" of "+pod, func(ctx context.Context) error {
		list, err := lab.Client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range list.Items {
			if e.InvolvedObject.Name != pod {
				continue
			}
			if e.Reason == reason {
				message = e.Message
				return nil
			}
			seen = append(seen, e.Reason)
		}
		return fmt.Errorf("there are only %q", seen)
	})
	return message
}

// findEvent waits for an event of a field selector with these words.
func findEvent(t *testing.T, l *labtest.Lab, ns, selector, words string) {
	t.Helper()
	until(t, "event "+selector, func(ctx context.Context) error {
		list, err := l.Client.CoreV1().Events(ns).List(ctx, metav1.ListOptions{FieldSelector: selector})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if strings.Contains(e.Message, words) {
				return nil
			}
		}
		return fmt.Errorf("there is none with %q among %d", words, len(list.Items))
	})
}

// waiting waits until a container waits for one of the reasons.
func waiting(t *testing.T, ns, pod, container string, reasons ...string) *v1.ContainerStateWaiting {
	t.Helper()
	var w *v1.ContainerStateWaiting
	podIs(t, ns, pod, patience, container+" waits for "+strings.Join(reasons, " or "), func(p *v1.Pod) error {
		if c := labtest.Container(p, container); c != nil && c.State.Waiting != nil {
			for _, reason := range reasons {
				if c.State.Waiting.Reason == reason {
					w = c.State.Waiting
					return nil
				}
			}
		}
		return fmt.Errorf("it does not")
	})
	return w
}

// withoutBowline stops Bowline while f runs and then starts it again as it was.
func withoutBowline(t *testing.T, f func()) {
	t.Helper()
	testutil.Must(t, bowline.Stop())
	defer func() {
		if !bowline.Running() {
			startBowline(t)
		}
	}()
	f()
}

// startBowline starts Bowline and waits until it serves the node's port.
func startBowline(t *testing.T) {
	t.Helper()
	testutil.Must(t, bowline.Start())
	answers(t)
}

// running returns the condition that a Bowline has not ended.
func running(b *labtest.Bowline) func(context.Context) error {
	return func(context.Context) error {
		if !b.Running() {
			return fmt.Errorf("bowline has ended: %s", b.LogTail(2000))
		}
		return nil
	}
}

func answers(t *testing.T) {
	t.Helper()
	if err := labtest.Until(context.Background(), 2*time.Minute, "the node answers", func(ctx context.Context) error {
		if err := running(bowline)(ctx); err != nil {
			return err
		}
		return lab.Client.CoreV1().RESTClient().Get().Resource("nodes").Name(host).SubResource("proxy").Suffix("healthz").Do(ctx).Error()
	}); err != nil {
		t.Error(err)
	}
}

// answer returns the condition that a script in a pod prints want.
func answer(ns, pod, script, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		out, err := lab.Kubectl(ctx, "exec", "-n", ns, pod, "--", "sh", "-c", script)
		if err == nil && !strings.Contains(out.Stdout, want) {
			err = fmt.Errorf("exit code %d: %s%s", out.Code, out.Stdout, out.Stderr)
		}
		return err
	}
}
