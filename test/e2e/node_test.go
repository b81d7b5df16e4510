package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
	"github.com/bowline-k8s/bowline/test/oracle"
)

// The Node object has the fields that a kubelet sets.
func TestNodeRegisters(t *testing.T) {
	serial(t)
	// The previous test may have started Bowline.
	_, err := lab.NodeReady(t.Context(), host, v1.ConditionTrue, patience)
	testutil.Must(t, err)
	node := getNode(t, lab)
	for _, r := range []v1.ResourceName{v1.ResourceCPU, v1.ResourceMemory, v1.ResourcePods, v1.ResourceEphemeralStorage} {
		capacity, allocatable := node.Status.Capacity[r], node.Status.Allocatable[r]
		if capacity.Sign() <= 0 || allocatable.Sign() <= 0 || allocatable.Cmp(capacity) > 0 {
			t.Errorf("%s: capacity %s, allocatable %s", r, &capacity, &allocatable)
		}
	}
	for key, want := range map[string]string{
		"kubernetes.io/hostname": host, "kubernetes.io/os": "linux", "kubernetes.io/arch": node.Status.NodeInfo.Architecture,
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": node.Status.NodeInfo.Architecture,
	} {
		if node.Labels[key] != want {
			t.Errorf("label %s is %q, not %q", key, node.Labels[key], want)
		}
	}
	conditions := map[v1.NodeConditionType]v1.ConditionStatus{}
	for _, c := range node.Status.Conditions {
		conditions[c.Type] = c.Status
		if c.Reason == "" || c.Message == "" || c.LastHeartbeatTime.IsZero() || c.LastTransitionTime.IsZero() {
			t.Errorf("condition %s is not complete: %v", c.Type, c)
		}
	}
	for c, want := range map[v1.NodeConditionType]v1.ConditionStatus{
		v1.NodeReady: v1.ConditionTrue, v1.NodeMemoryPressure: v1.ConditionFalse,
		v1.NodeDiskPressure: v1.ConditionFalse, v1.NodePIDPressure: v1.ConditionFalse,
	} {
		if conditions[c] != want {
			t.Errorf("condition %s is %q, not %q", c, conditions[c], want)
		}
	}
	// This makes the API server forward kubectl's WebSockets unchanged.
	if !slices.Contains(node.Status.DeclaredFeatures, "ExtendWebSocketsToKubelet") {
		t.Errorf("declaredFeatures are %v", node.Status.DeclaredFeatures)
	}
	info := node.Status.NodeInfo
	for what, value := range map[string]string{
		"machineID": info.MachineID, "bootID": info.BootID, "kernelVersion": info.KernelVersion,
		"osImage": info.OSImage, "containerRuntimeVersion": info.ContainerRuntimeVersion, "kubeletVersion": info.KubeletVersion,
		"operatingSystem": info.OperatingSystem, "architecture": info.Architecture,
	} {
		if value == "" {
			t.Errorf("nodeInfo.%s is empty", what)
		}
	}
	if !strings.HasPrefix(info.ContainerRuntimeVersion, lab.Host(host).RuntimeName()+"://") {
		t.Errorf("containerRuntimeVersion is %q", info.ContainerRuntimeVersion)
	}
	addresses := map[v1.NodeAddressType]string{}
	for _, a := range node.Status.Addresses {
		addresses[a.Type] = a.Address
	}
	want := lab.Host(host).IP
	if remote {
		want = bowline.Apart.Address()
	}
	if addresses[v1.NodeInternalIP] != want || addresses[v1.NodeHostName] != host {
		t.Errorf("addresses are %v", node.Status.Addresses)
	}
	if port := node.Status.DaemonEndpoints.KubeletEndpoint.Port; !remote && port != 10250 || port == 0 {
		t.Errorf("the node's port is %d", port)
	}
	if len(node.Status.Images) == 0 {
		t.Log("the node lists no images")
	}
}

// The lease belongs to the node, and is renewed.
func TestNodeLease(t *testing.T) {
	serial(t)
	leases := lab.Client.CoordinationV1().Leases("kube-node-lease")
	lease, err := leases.Get(t.Context(), host, metav1.GetOptions{})
	testutil.Must(t, err)
	if lease.Spec.HolderIdentity == nil || *lease.Spec.HolderIdentity != host {
		t.Errorf("the lease's holder is %v", lease.Spec.HolderIdentity)
	}
	if lease.Spec.LeaseDurationSeconds == nil || *lease.Spec.LeaseDurationSeconds != 40 {
		t.Errorf("the lease lasts %v s", lease.Spec.LeaseDurationSeconds)
	}
	node := getNode(t, lab)
	if len(lease.OwnerReferences) != 1 || lease.OwnerReferences[0].UID != node.UID {
		t.Errorf("the lease is owned by %v, not by the Node", lease.OwnerReferences)
	}
	testutil.Must(t, labtest.Until(t.Context(), 15*time.Second, "a renewed lease", func(ctx context.Context) error {
		now, err := leases.Get(ctx, host, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !now.Spec.RenewTime.After(lease.Spec.RenewTime.Time) {
			return fmt.Errorf("it is of %s", now.Spec.RenewTime)
		}
		return nil
	}))
}

// Bowline works with the node's credential, which has only a node's rights.
func TestNodeIdentity(t *testing.T) {
	serial(t)
	config, err := clientcmd.BuildConfigFromFlags("", lab.Host(host).NodeKubeconfig)
	testutil.Must(t, err)
	client, err := kubernetes.NewForConfig(config)
	testutil.Must(t, err)
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	testutil.Must(t, err)
	if who.Status.UserInfo.Username != "system:node:"+host {
		t.Errorf("it is %q", who.Status.UserInfo.Username)
	}
	if _, err := client.CoreV1().Secrets("kube-system").List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("this credential may list all secrets: it is not a node's, and the test shows nothing")
	}
}

// While containerd is away the node is NotReady and says why; no container restarts because of it.
func TestNodeNotReadyWithoutRuntime(t *testing.T) {
	serial(t)
	ns := namespace(t)
	dir := hostDir(t)
	create(t, ns, probed("steady", dir))
	before := ready(t, ns, "steady")
	history := lab.Watch(ns)
	defer history.Stop()

	testutil.Must(t, lab.StopProcess(t.Context(), host, lab.Host(host).Runtime))
	begin := time.Now()
	condition, err := lab.NodeReady(t.Context(), host, v1.ConditionFalse, patience)
	if startErr := lab.StartProcess(t.Context(), host, lab.Host(host).Runtime); startErr != nil {
		t.Fatal(startErr)
	}
	testutil.Must(t, err)
	t.Logf("NotReady after %s: %s", time.Since(begin).Round(time.Millisecond), condition.Message)
	if !strings.Contains(condition.Message, "runtime") || condition.Reason != "KubeletNotReady" {
		t.Errorf("the condition does not say why: %s: %s", condition.Reason, condition.Message)
	}
	begin = time.Now()
	_, err = lab.NodeReady(t.Context(), host, v1.ConditionTrue, patience)
	testutil.Must(t, err)
	t.Logf("Ready again after %s", time.Since(begin).Round(time.Millisecond))

	// A new pod proves that the node works; the old one is unchanged.
	create(t, ns, probed("later", dir))
	ready(t, ns, "later")
	after := ready(t, ns, "steady")
	same(t, before, after)
	startedOnce(t, dir, "steady")
	oracle.NoPodBackwards(t, history)
}

// probed is a pod that records each start in dir and has every kind of probe.
func probed(name, dir string) string {
	return `
metadata: {name: ` + name + `, labels: {app: probed}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: $TOOLBOX
    command: [sh, -c, "append /starts/` + name + ` start; exec nc -ll -p 8080 -e cat"]
    startupProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 30}
    readinessProbe: {tcpSocket: {port: 8080}, periodSeconds: 1, timeoutSeconds: 10}
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 2}
    volumeMounts: [{name: starts, mountPath: /starts}]
  volumes:
  - {name: starts, hostPath: {path: ` + dir + `}}
`
}

// same checks that the same containers run, and that none has restarted.
func same(t *testing.T, before, after *v1.Pod) {
	t.Helper()
	if before.UID != after.UID {
		t.Errorf("%s is another pod", after.Name)
	}
	for _, b := range before.Status.ContainerStatuses {
		a := labtest.Container(after, b.Name)
		if a == nil || a.ContainerID != b.ContainerID || a.RestartCount != b.RestartCount {
			t.Errorf("%s: container %s was %s (%d restarts), is now %v", after.Name, b.Name, b.ContainerID, b.RestartCount, a)
		}
	}
}

// unchanged checks same for each pod from before, and that its container has started once.
func unchanged(t *testing.T, dir string, before, after []v1.Pod) {
	t.Helper()
	for i := range before {
		name := before[i].Name
		j := slices.IndexFunc(after, func(p v1.Pod) bool { return p.Name == name })
		if j < 0 {
			t.Errorf("%s is gone", name)
			continue
		}
		same(t, &before[i], &after[j])
		startedOnce(t, dir, name)
	}
}

// nodeAddress is the address of the node's API, as the API server uses it.
func nodeAddress(t *testing.T) string {
	t.Helper()
	node := getNode(t, lab)
	for _, a := range node.Status.Addresses {
		if a.Type == v1.NodeInternalIP {
			return fmt.Sprintf("%s:%d", a.Address, node.Status.DaemonEndpoints.KubeletEndpoint.Port)
		}
	}
	t.Fatalf("node %s has no address", host)
	return ""
}
