package e2e

import (
	"context"
	"fmt"
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

const replicas = 20

func deployment(t *testing.T, ns, name string, n int) *appsv1.Deployment {
	t.Helper()
	d := manifest[appsv1.Deployment](t, ns, fmt.Sprintf(`
metadata: {name: %s}
spec:
  replicas: %d
  selector: {matchLabels: {app: %s}}
  strategy: {rollingUpdate: {maxSurge: 5, maxUnavailable: 5}}
  template:
    metadata: {labels: {app: %s}}
    spec:
      terminationGracePeriodSeconds: 30
      containers:
      - name: web
        image: $WEB
        readinessProbe: {httpGet: {path: /readyz, port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: config, mountPath: /config}, {name: memory, mountPath: /memory}, {name: scratch, mountPath: /scratch}]
      volumes:
      - {name: config, configMap: {name: kube-root-ca.crt}}
      - {name: memory, emptyDir: {medium: Memory}}
      - {name: scratch, emptyDir: {}}
`, name, n, name, name))
	d, err := lab.Client.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{})
	testutil.Must(t, err)
	return d
}

func deleteDeployment(t *testing.T, ns, name string) {
	t.Helper()
	policy := metav1.DeletePropagationForeground
	testutil.Must(t, lab.Client.AppsV1().Deployments(ns).Delete(t.Context(), name, metav1.DeleteOptions{PropagationPolicy: &policy}))
	until(t, "no pod of "+name, func(ctx context.Context) error {
		list, err := lab.Client.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + name})
		if err != nil {
			return err
		}
		if len(list.Items) > 0 {
			return fmt.Errorf("%d are left, such as %s", len(list.Items), labtest.Describe(&list.Items[0]))
		}
		return nil
	})
}

// A Deployment goes up, is rolled and goes down, and the machine is as it was. The file's name
// makes this the first test: a later one would have to wait for the sweeps that collect what
// earlier tests left.
func TestDeploymentLeavesNothing(t *testing.T) {
	serial(t)
	ns := namespace(t)
	waitForClean(t)
	before, err := lab.Snapshot(t.Context(), runtime, host)
	testutil.Must(t, err)
	t.Log("before:", before.Counts())

	history := lab.Watch(ns)
	defer history.Stop()
	begin := time.Now()
	step := func(what string) {
		t.Logf("%s after %s", what, time.Since(begin).Round(10*time.Millisecond))
		begin = time.Now()
	}
	deployment(t, ns, "web", replicas)
	readyPods(t, ns, "web", replicas)
	step("20 pods Ready")
	full, err := lab.Snapshot(t.Context(), runtime, host)
	testutil.Must(t, err)
	t.Log("with 20 pods:", full.Counts())
	for _, kind := range []string{"sandboxes", "containers", "network namespaces", "pod directories", "pod records",
		"log directories", "log links", "addresses", "interfaces"} {
		if len(full[kind])-len(before[kind]) != replicas {
			t.Errorf("%s: %d before and %d with 20 pods; the count that is to come back counts nothing", kind, len(before[kind]), len(full[kind]))
		}
	}
	for _, kind := range []string{"mounts", "cgroups", "shims"} { // several a pod
		if len(full[kind])-len(before[kind]) < replicas {
			t.Errorf("%s: %d before and %d with 20 pods", kind, len(before[kind]), len(full[kind]))
		}
	}

	_, err = lab.Client.AppsV1().Deployments(ns).Patch(t.Context(), "web", types.StrategicMergePatchType,
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"web","image":"`+webV2+`"}]}}}}`), metav1.PatchOptions{})
	testutil.Must(t, err)
	testutil.Must(t, labtest.Until(t.Context(), 3*time.Minute, "the new version everywhere", func(ctx context.Context) error {
		d, err := lab.Client.AppsV1().Deployments(ns).Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		s := d.Status
		if s.ObservedGeneration < d.Generation || s.UpdatedReplicas != replicas || s.ReadyReplicas != replicas || s.Replicas != replicas {
			return fmt.Errorf("%d updated, %d ready, %d in all", s.UpdatedReplicas, s.ReadyReplicas, s.Replicas)
		}
		return nil
	}))
	pods := readyPods(t, ns, "web", replicas)
	step("rolled")
	for _, p := range pods {
		if got := p.Status.ContainerStatuses[0]; got.Image != webV2 || got.RestartCount != 0 {
			t.Errorf("%s runs %s with %d restarts", p.Name, got.Image, got.RestartCount)
		}
	}
	deleteDeployment(t, ns, "web")
	step("gone from the API")
	nothingLeft(t, before)
	step("nothing left on the machine")
	oracle.NoPodBackwards(t, history)
	for _, uid := range history.Pods() {
		for _, p := range history.Of(uid) {
			if p.Status.Phase == v1.PodFailed {
				t.Errorf("a pod failed: %s", labtest.Describe(p))
				break
			}
		}
	}
}

// waitForClean waits until the machine holds only what the cluster's own pods make.
func waitForClean(t *testing.T) {
	t.Helper()
	testutil.Must(t, labtest.Until(t.Context(), 4*time.Minute, "what earlier tests left is collected", func(ctx context.Context) error {
		list, err := lab.Client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if list.Items[i].Namespace != "kube-system" {
				return fmt.Errorf("pod %s/%s is there", list.Items[i].Namespace, labtest.Describe(&list.Items[i]))
			}
		}
		s, err := lab.Snapshot(ctx, runtime, host)
		if err != nil {
			return err
		}
		for _, kind := range []string{"sandboxes", "pod directories", "pod records", "log directories", "network namespaces"} {
			if len(s[kind]) != len(list.Items) {
				return fmt.Errorf("%d pods, and %s: %q", len(list.Items), kind, s[kind])
			}
		}
		return nil
	}))
}

// nothingLeft waits until the machine is as it was. That takes the sweeps, which run each minute.
func nothingLeft(t *testing.T, before labtest.Snapshot) {
	t.Helper()
	testutil.Must(t, oracle.NothingLeft(t.Context(), lab, runtime, host, before, 4*time.Minute))
}
