package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

// counted makes a Deployment whose containers record each start under their pod's name in dir and
// have every kind of probe.
func counted(t *testing.T, ns, name, dir string, n int) {
	t.Helper()
	d := manifest[appsv1.Deployment](t, ns, fmt.Sprintf(`
metadata: {name: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: %s}}
  template:
    metadata: {labels: {app: %s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: $TOOLBOX
        env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        command: [sh, -c, "append /starts/$(POD_NAME) start; exec nc -ll -p 8080 -e cat"]
        # Time enough for a busy machine: what may fail here is the runtime's absence.
        startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 60}
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 2}
        livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 2}
        volumeMounts: [{name: starts, mountPath: /starts}]
      volumes: [{name: starts, hostPath: {path: %s}}]
`, name, n, name, name, dir))
	_, err := lab.Client.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{})
	testutil.Must(t, err)
}

func scale(t *testing.T, ns, name string, n int) {
	t.Helper()
	_, err := lab.Client.AppsV1().Deployments(ns).Patch(t.Context(), name, types.MergePatchType,
		fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, n), metav1.PatchOptions{})
	testutil.Must(t, err)
}

// containerd goes away under load: running containers keep running, and starting ones start.
func TestContainerdRestartsUnderLoad(t *testing.T) {
	serial(t)
	ns := namespace(t)
	dir := hostDir(t)
	history := lab.Watch(ns)
	defer history.Stop()
	counted(t, ns, "load", dir, 10)
	before := readyPods(t, ns, "load", 10)
	// Ten more begin, and containerd goes while they do.
	scale(t, ns, "load", 20)
	until(t, "pods that start", func(ctx context.Context) error {
		list, err := runtime.ListPodSandbox(ctx, nil)
		if err != nil {
			return err
		}
		n := 0
		for _, s := range list {
			if s.Metadata.GetNamespace() == ns {
				n++
			}
		}
		if n < 12 {
			return fmt.Errorf("%d sandboxes", n)
		}
		return nil
	})
	testutil.Must(t, lab.StopProcess(t.Context(), host, lab.Host(host).Runtime))
	// Long enough that every probe would have failed its threshold.
	testutil.Must(t, labtest.Holds(t.Context(), 8*time.Second, "bowline runs", running(bowline)))
	testutil.Must(t, lab.StartProcess(t.Context(), host, lab.Host(host).Runtime))
	begin := time.Now()
	after := readyPods(t, ns, "load", 20)
	t.Logf("20 pods Ready %s after containerd came back", time.Since(begin).Round(time.Millisecond))
	for i := range after {
		// A container that was created and never started, because containerd went in between,
		// counts as a restart, as with a kubelet.
		if n, restarts := starts(t, dir, after[i].Name), int(labtest.Restarts(&after[i])); n < 1 || n > restarts+1 {
			t.Errorf("%s has started %d times and shows %d restarts", after[i].Name, n, restarts)
		}
	}
	unchanged(t, dir, before, after)
	oracle.NoPodBackwards(t, history)
}

// The API server is away for a minute: healthy containers run on, containers that exit are
// restarted by their policy, and the statuses catch up. A new Bowline process that starts meanwhile
// runs static pods, and ends nothing.
func TestAPIServerAway(t *testing.T) {
	if !full {
		onlyLocal(t, "only the API server fails, so the kind of host does not matter; BOWLINE_E2E_FULL=1 runs it")
	}
	serial(t)
	ns := namespace(t)
	dir := hostDir(t)
	counted(t, ns, "steady", dir, 5)
	steady := readyPods(t, ns, "steady", 5)
	create(t, ns, brief("exits", `
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "append /starts/exits start; sleep 25; exit 3"]
    volumeMounts: [{name: starts, mountPath: /starts}]
  volumes: [{name: starts, hostPath: {path: `+dir+`}}]
`))
	create(t, ns, `
metadata: {name: finishes}
spec:
  restartPolicy: Never
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "append /starts/finishes start; sleep 25"]
    volumeMounts: [{name: starts, mountPath: /starts}]
  volumes: [{name: starts, hostPath: {path: `+dir+`}}]
`)
	ready(t, ns, "exits")
	ready(t, ns, "finishes")
	history := lab.Watch(ns)
	defer history.Stop()

	testutil.Must(t, lab.StopProcess(t.Context(), "", "kube-apiserver"))
	back := false
	defer func() {
		if !back {
			_ = lab.StartProcess(context.Background(), "", "kube-apiserver")
		}
	}()
	if _, err := lab.Client.CoreV1().Nodes().Get(t.Context(), host, metav1.GetOptions{}); err == nil {
		t.Fatal("the API server still answers")
	}
	testutil.Must(t, labtest.Holds(t.Context(), 45*time.Second, "bowline runs", running(bowline)))
	// No status can report the restart yet: Bowline did it on its own.
	if n := starts(t, dir, "exits"); n < 2 {
		t.Errorf("the container that exited has started %d times while the API server was away", n)
	}
	bowline.Kill()
	testutil.Must(t, bowline.Start())
	t.Cleanup(func() { _ = os.Remove(filepath.Join(static.dir, "offline.yaml")) })
	static.put(t, ns, "offline.yaml", `
apiVersion: v1
kind: Pod
metadata: {name: offline, namespace: $NS}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "append /starts/offline start; sleep inf"]
    volumeMounts: [{name: starts, mountPath: /starts}]
  volumes: [{name: starts, hostPath: {path: `+dir+`}}]
`)
	testutil.Must(t, labtest.Until(t.Context(), patience, "the static pod runs without an API server", func(ctx context.Context) error {
		if _, err := os.Stat(filepath.Join(dir, "offline")); err != nil {
			return fmt.Errorf("%w; bowline's log: %s", err, bowline.LogTail(2000))
		}
		return running(bowline)(ctx)
	}))
	testutil.Must(t, lab.StartProcess(t.Context(), "", "kube-apiserver"))
	back = true
	begin := time.Now()
	podIs(t, ns, "exits", patience, "shown as restarted", func(p *v1.Pod) error {
		if labtest.Restarts(p) < 1 {
			return fmt.Errorf("it has not")
		}
		if last := labtest.Container(p, "main").LastTerminationState.Terminated; last == nil || last.ExitCode != 3 {
			return fmt.Errorf("its last end is shown as %v", last)
		}
		return nil
	})
	ended(t, ns, "finishes", v1.PodSucceeded)
	t.Logf("statuses caught up %s after the API server was started", time.Since(begin).Round(time.Millisecond))
	_, err := lab.NodeReady(t.Context(), host, v1.ConditionTrue, patience)
	testutil.Must(t, err)
	unchanged(t, dir, steady, readyPods(t, ns, "steady", 5))
	startedOnce(t, dir, "finishes")
	mirror(t, ns, "offline-"+host, func(*v1.Pod) bool { return true })
	startedOnce(t, dir, "offline")
	testutil.Must(t, os.Remove(filepath.Join(static.dir, "offline.yaml")))
	// The watches live again: a new pod starts, an old one ends. client-go retries a lost watch
	// after up to a minute, as in a kubelet.
	create(t, ns, probed("later", dir))
	readyWithin(t, 2*time.Minute, ns, "later")
	deletePod(t, ns, "later", metav1.DeleteOptions{}, patience)
	testutil.Must(t, lab.PodGone(t.Context(), ns, "offline-"+host, patience))
	oracle.NoPodBackwards(t, history)
}
