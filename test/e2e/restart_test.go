package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

// Bowline is killed and started again, and adopts what runs. Nothing restarts, nothing is made
// twice, no status goes back, and what was ending ends.
func TestAdoption(t *testing.T) {
	serial(t)
	ns := namespace(t)
	dir := hostDir(t)
	counted(t, ns, "steady", dir, 7) // with all probes
	create(t, ns, brief("slow", `
  containers:
  - name: main
    image: $WEB
    # After a restart of Bowline the first probe comes late: readiness must come
    # from what was reported before.
    readinessProbe: {httpGet: {path: /readyz, port: 8080}, initialDelaySeconds: 3, periodSeconds: 10}
`))
	create(t, ns, `
metadata: {name: ending}
spec:
  terminationGracePeriodSeconds: 12
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "trap 'append /starts/ending-term term' TERM; append /starts/ending start; count -i 1 & while :; do wait; done"]
    volumeMounts: [{name: starts, mountPath: /starts}]
  volumes: [{name: starts, hostPath: {path: `+dir+`}}]
`)
	job := manifest[batchv1.Job](t, ns, `
metadata: {name: once}
spec:
  backoffLimit: 0
  template:
    metadata: {labels: {app: once}}
    spec:
      restartPolicy: Never
      initContainers:
      - name: init
        image: $TOOLBOX
        command: [append, /starts/once-init, start]
        volumeMounts: [{name: starts, mountPath: /starts}]
      containers:
      - name: main
        image: $TOOLBOX
        command: [sh, -c, "append /starts/once start; sleep 12"]
        volumeMounts: [{name: starts, mountPath: /starts}]
      volumes: [{name: starts, hostPath: {path: `+dir+`}}]
`)
	// First the pods that take long to be Ready, then the Job.
	readyPods(t, ns, "steady", 7)
	slow, ending := ready(t, ns, "slow"), ready(t, ns, "ending")
	_, err := lab.Client.BatchV1().Jobs(ns).Create(t.Context(), job, metav1.CreateOptions{})
	testutil.Must(t, err)
	once := readyPods(t, ns, "once", 1)
	steady := readyPods(t, ns, "steady", 7)
	testutil.Must(t, lab.Client.CoreV1().Pods(ns).Delete(t.Context(), "ending", metav1.DeleteOptions{}))
	asked := time.Now()
	until(t, "the ending pod has TERM", func(context.Context) error {
		if starts(t, dir, "ending-term") == 0 {
			return fmt.Errorf("it has not")
		}
		return nil
	})
	history := lab.Watch(ns)
	defer history.Stop()
	sandboxes, containers := ofNamespace(t, ns)

	bowline.Kill()
	killed := time.Now()
	startBowline(t)
	t.Logf("the node answers %s after the kill", time.Since(killed).Round(time.Millisecond))

	testutil.Must(t, lab.PodGone(t.Context(), ns, "ending", 40*time.Second))
	gone := time.Since(asked)
	t.Logf("the ending pod, with 12 s of grace, was gone after %s", gone.Round(time.Millisecond))
	if gone < 10*time.Second {
		t.Errorf("the ending pod had %s of its 12 s", gone)
	}
	startedOnce(t, dir, "ending")
	ended(t, ns, once[0].Name, v1.PodSucceeded)
	until(t, "the Job is complete", func(ctx context.Context) error {
		j, err := lab.Client.BatchV1().Jobs(ns).Get(ctx, "once", metav1.GetOptions{})
		if err == nil && j.Status.Succeeded != 1 {
			err = fmt.Errorf("%d succeeded, %d failed", j.Status.Succeeded, j.Status.Failed)
		}
		return err
	})
	for _, name := range []string{"once", "once-init"} {
		startedOnce(t, dir, name)
	}
	unchanged(t, dir, steady, readyPods(t, ns, "steady", 7))
	same(t, slow, ready(t, ns, "slow"))
	// Only what ended is gone, and nothing is new.
	sandboxesNow, containersNow := ofNamespace(t, ns)
	for id, pod := range sandboxesNow {
		if _, ok := sandboxes[id]; !ok {
			t.Errorf("sandbox %s of %s is new", id, pod)
		}
	}
	for id, what := range containersNow {
		if _, ok := containers[id]; !ok {
			t.Errorf("container %s of %s is new", id, what)
		}
	}
	oracle.NoPodBackwards(t, history)
	for _, uid := range history.Pods() {
		if uid == ending.UID || uid == once[0].UID {
			continue // they end
		}
		for _, p := range history.Of(uid) {
			if !labtest.IsReady(p) {
				t.Errorf("%s was reported not Ready at version %s: %v", p.Name, p.ResourceVersion, labtest.Condition(p, v1.PodReady))
			}
		}
	}
}

// ofNamespace lists sandboxes and containers, by ID.
func ofNamespace(t *testing.T, ns string) (sandboxes, containers map[string]string) {
	t.Helper()
	sandboxes, containers = map[string]string{}, map[string]string{}
	list, err := runtime.ListPodSandbox(t.Context(), nil)
	testutil.Must(t, err)
	for _, s := range list {
		if s.Metadata.GetNamespace() == ns {
			sandboxes[s.Id] = s.Metadata.GetName()
		}
	}
	all, err := runtime.ListContainers(t.Context(), &runtimeapi.ContainerFilter{})
	testutil.Must(t, err)
	for _, c := range all {
		if c.Labels["io.kubernetes.pod.namespace"] == ns {
			containers[c.Id] = c.Labels["io.kubernetes.pod.name"] + "/" + c.Metadata.GetName()
		}
	}
	return sandboxes, containers
}
