package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// After a reboot a machine has another boot ID, and its runtime has sandboxes and containers that
// have ended. The node reports the reboot; the pods start at once, without back-off, because
// nothing has crashed. One of the pods has crashed twice before, so a reboot that counted as a
// crash would make it wait for 40 s.
func TestRebooted(t *testing.T) {
	serial(t)
	ns := namespace(t)
	dir := hostDir(t)
	counted(t, ns, "lives", dir, 2)
	crashing(t, ns, "crashed", dir)
	const crashes = 2
	before := append(readyPods(t, ns, "lives", 2), readyPods(t, ns, "crashed", 1)...)
	restarts, waits := map[string]int32{}, backOffs(t, ns)
	for i := range before {
		restarts[before[i].Name] = labtest.Restarts(&before[i])
	}
	equal(t, "restarts before the reboot", restarts[before[2].Name], crashes)
	if waits[before[2].Name] == 0 {
		t.Error("the crashes caused no back-off, so the reboot cannot show one")
	}

	const bootID = "5ca1ab1e-0000-4000-8000-00000b0071d0"
	withoutBowline(t, func() { reboot(t, dir, bootID) })
	defer withoutBowline(t, func() { onHost(t, "umount", bootIDFile) })
	began := time.Now()

	rebooted(t, bootID)
	startedAgain(t, ns, dir, before, restarts)
	t.Logf("the pods are Ready %s after Bowline was started", time.Since(began).Round(time.Millisecond))
	noMoreBackOffs(t, ns, waits)
	// CoreDNS is one of the pods that the reboot stopped.
	_, err := lab.ReadyPods(t.Context(), "kube-system", "k8s-app=kube-dns", 1, patience)
	testutil.Must(t, err)
}

// A remote machine reboots while the process runs: the link is cut, the boot ID is another, and the
// machine has lost its containers and the mounts of its pods. The process notices by itself: the node
// reports the reboot, and each container is started and counted as by a kubelet that starts after a
// reboot, without back-off, on volumes that are mounted again. Later the boot ID changes back under
// an unbroken link.
func TestRebootedUnderAProcess(t *testing.T) {
	serial(t)
	onlyRemote(t) // a process on the machine ends with it
	ns := namespace(t)
	dir := hostDir(t)
	counted(t, ns, "lives", dir, 2)
	crashing(t, ns, "crashed", dir)
	before := append(readyPods(t, ns, "lives", 2), readyPods(t, ns, "crashed", 1)...)
	restarts, waits := map[string]int32{}, backOffs(t, ns)
	for i := range before {
		restarts[before[i].Name] = labtest.Restarts(&before[i])
	}
	was, pid := getNode(t, lab).Status.NodeInfo.BootID, bowline.PID()

	const bootID = "5ca1ab1e-0000-4000-8000-00000b0071d1"
	wire.Cut()
	defer func() {
		wire.Restore()
		onHost(t, "umount", bootIDFile)
		rebooted(t, was)
	}()
	reboot(t, dir, bootID)
	for i := range before {
		loseMounts(t, &before[i])
	}
	wire.Restore()
	began := time.Now()

	rebooted(t, bootID)
	startedAgain(t, ns, dir, before, restarts)
	t.Logf("the pods are Ready %s after the link came back", time.Since(began).Round(time.Millisecond))
	noMoreBackOffs(t, ns, waits)
	for i := range before {
		const token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
		if inPod(t, ns, before[i].Name, "cat "+token) == "" {
			t.Errorf("%s has no token after the reboot", before[i].Name)
		}
	}
	until(t, "the node is Ready", wantCondition(v1.NodeReady, v1.ConditionTrue))
	until(t, "pods are welcome", wantCondition(v1.NodeNetworkUnavailable, v1.ConditionFalse))
	if !bowline.Running() || bowline.PID() != pid {
		t.Error("the process did not live through the reboot")
	}
	_, err := lab.ReadyPods(t.Context(), "kube-system", "k8s-app=kube-dns", 1, patience)
	testutil.Must(t, err)
}

const bootIDFile = "/proc/sys/kernel/random/boot_id"

// reboot gives the host another boot ID, and ends all sandboxes with their containers.
func reboot(t *testing.T, dir, bootID string) {
	t.Helper()
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "boot_id"), []byte(bootID+"\n"), 0o644))
	onHost(t, "mount", "--bind", filepath.Join(dir, "boot_id"), bootIDFile)
	list, err := runtime.ListPodSandbox(t.Context(), nil)
	testutil.Must(t, err)
	for _, s := range list {
		if s.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			testutil.Must(t, runtime.StopPodSandbox(t.Context(), s.Id))
		}
	}
}

// loseMounts unmounts the volumes of a pod whose containers have ended. There is at least one: the
// token of its service account.
func loseMounts(t *testing.T, p *v1.Pod) {
	t.Helper()
	volumes := "/pods/" + string(p.UID) + "/volumes/"
	lost := 0
	for line := range strings.Lines(inHost(t, "cat", "/proc/self/mountinfo")) {
		if point := strings.Fields(line)[4]; strings.Contains(point, volumes) {
			// It may be gone: a mount is listed at each path of the directory that it is in.
			_ = lab.Exec(t.Context(), host, "umount", point).Run()
			lost++
		}
	}
	if lost == 0 {
		t.Errorf("%s has no mounts to lose", p.Name)
	}
	until(t, "the volumes of "+p.Name+" are lost", unmounted(t, volumes))
}

// rebooted waits until the node has the boot ID, and an event that names it.
func rebooted(t *testing.T, bootID string) {
	t.Helper()
	until(t, "the node has the machine's boot ID", func(ctx context.Context) error {
		node, err := lab.Client.CoreV1().Nodes().Get(ctx, host, metav1.GetOptions{})
		if err == nil && node.Status.NodeInfo.BootID != bootID {
			err = fmt.Errorf("it is %s", node.Status.NodeInfo.BootID)
		}
		return err
	})
	findEvent(t, lab, metav1.NamespaceDefault, "involvedObject.kind=Node,involvedObject.name="+host+",reason=Rebooted", bootID)
}

// startedAgain waits until each pod is Ready with one restart more than before, and one start more.
func startedAgain(t *testing.T, ns, dir string, before []v1.Pod, restarts map[string]int32) {
	t.Helper()
	for i := range before {
		p := podIs(t, ns, before[i].Name, patience, "started again", func(p *v1.Pod) error {
			if n := labtest.Restarts(p); n != restarts[p.Name]+1 || !labtest.IsReady(p) {
				return fmt.Errorf("%d restarts, ready %v", n, labtest.IsReady(p))
			}
			return nil
		})
		if p.UID != before[i].UID {
			t.Errorf("%s is another pod", p.Name)
		}
		equal(t, "starts of "+p.Name, starts(t, dir, p.Name), int(restarts[p.Name])+2)
	}
}

// noMoreBackOffs checks that no pod was in back-off since waits.
func noMoreBackOffs(t *testing.T, ns string, waits map[string]int32) {
	t.Helper()
	for name, n := range backOffs(t, ns) {
		if n != waits[name] {
			t.Errorf("%s was in back-off after the reboot: %d events, and %d before", name, n, waits[name])
		}
	}
}

// backOffs counts the events about back-offs by pod.
func backOffs(t *testing.T, ns string) map[string]int32 {
	t.Helper()
	events, err := lab.Client.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "reason=BackOff"})
	testutil.Must(t, err)
	out := map[string]int32{}
	for _, e := range events.Items {
		out[e.InvolvedObject.Name] += max(e.Count, 1)
	}
	return out
}

// crashing runs a pod whose container fails at its first two starts. It appends a line to
// dir/POD-NAME at each start.
func crashing(t *testing.T, ns, name, dir string) {
	t.Helper()
	d := manifest[appsv1.Deployment](t, ns, fmt.Sprintf(`
metadata: {name: %[1]s}
spec:
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      containers:
      - name: main
        image: $TOOLBOX
        env: [{name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
        command:
        - sh
        - -c
        - |
          append /starts/$(POD_NAME) start
          n=0
          while read -r line; do n=$((n + 1)); done </starts/$(POD_NAME)
          [ "$n" -gt 2 ] || exit 1
          exec nc -ll -p 8080 -e cat
        readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 2}
        volumeMounts: [{name: starts, mountPath: /starts}]
      volumes: [{name: starts, hostPath: {path: %[2]s}}]
`, name, dir))
	_, err := lab.Client.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{})
	testutil.Must(t, err)
}
