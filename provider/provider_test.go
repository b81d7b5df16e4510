package provider

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/kubernetes/fake"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
)

// loop records the notifications.
type loop struct {
	mu         sync.Mutex
	changed    []pod.Ref
	terminated []pod.Ref
	held       map[string]*v1.Pod
}

func (l *loop) PodChanged(r pod.Ref) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.changed = append(l.changed, r)
}
func (l *loop) TerminateRequested(ns, name string, uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.terminated = append(l.terminated, pod.Ref{Namespace: ns, Name: name, UID: uid})
}
func (l *loop) PodByName(ns, name string) (*v1.Pod, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	p, ok := l.held[ns+"/"+name]
	return p, ok
}
func (l *loop) sawChange(r pod.Ref) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.changed {
		if c == r {
			return true
		}
	}
	return false
}

func somePod(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: uid}, Spec: v1.PodSpec{NodeName: "n1"}}
}

func TestHooksWakeAndNeverFail(t *testing.T) {
	l := &loop{held: map[string]*v1.Pod{"shop/gone": somePod("u0")}}
	idx := emptyIndexer()
	testutil.Must(t, idx.Add(somePod("u1")))
	h := &hooks{source: l, held: l, lister: corev1listers.NewPodLister(idx)}
	ctx := t.Context()
	for name, hook := range map[string]func(context.Context, *v1.Pod) error{"create": h.CreatePod, "update": h.UpdatePod, "delete": h.DeletePod} {
		if err := hook(ctx, somePod(types.UID(name))); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if want := (pod.Ref{Namespace: "shop", Name: "web", UID: types.UID(name)}); !l.sawChange(want) {
			t.Errorf("%s did not wake the loop", name)
		}
	}
	if _, err := h.GetPod(ctx, "shop", "web"); !errdefs.IsNotFound(err) {
		t.Errorf("a pod that the API server has: %v, want not found, so that it is always handed on", err)
	}
	if p, err := h.GetPod(ctx, "shop", "gone"); err != nil || p.UID != "u0" {
		t.Errorf("a pod that only the loop has: %v %v, want it, so that it is deleted", p, err)
	}
	if _, err := h.GetPod(ctx, "shop", "never"); !errdefs.IsNotFound(err) {
		t.Errorf("a pod that no one has: %v", err)
	}
	if pods, err := h.GetPods(ctx); len(pods) != 0 || err != nil {
		t.Errorf("GetPods: %v %v, want none", pods, err)
	}
}

func TestGateTurnsWritesIntoRequests(t *testing.T) {
	client := fake.NewSimpleClientset(somePod("u1"))
	l := &loop{}
	idx := emptyIndexer()
	testutil.Must(t, idx.Add(somePod("u1")))
	g := &gate{PodsGetter: client.CoreV1(), source: l, loop: l, lister: corev1listers.NewPodLister(idx)}
	ctx := t.Context()
	uid := types.UID("u9")
	testutil.Must(t, g.Pods("shop").Delete(ctx, "web", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}}))
	testutil.Must(t, g.Pods("shop").Delete(ctx, "web", metav1.DeleteOptions{}))
	want := []pod.Ref{{Namespace: "shop", Name: "web", UID: "u9"}, {Namespace: "shop", Name: "web", UID: "u1"}}
	if d := cmp.Diff(want, l.terminated); d != "" {
		t.Errorf("terminate requests: %s", d)
	}
	changed := somePod("u1")
	changed.Status.Phase = v1.PodFailed
	if _, err := g.Pods("shop").UpdateStatus(ctx, changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !l.sawChange(pod.Ref{Namespace: "shop", Name: "web", UID: "u1"}) {
		t.Error("UpdateStatus did not wake the loop")
	}
	for _, a := range client.Actions() {
		t.Errorf("%s %s went through", a.GetVerb(), a.GetResource().Resource)
	}
	p, err := g.Pods("shop").Get(ctx, "web", metav1.GetOptions{})
	if err != nil || p.Status.Phase != "" {
		t.Errorf("Get does not pass: %v %v", p, err)
	}
}

func TestRecorderDropsProviderEvents(t *testing.T) {
	f := record.NewFakeRecorder(10)
	r := quietRecorder{f}
	r.Event(somePod("u"), "Normal", "ProviderCreateSuccess", "x")
	r.Eventf(somePod("u"), "Normal", "ProviderUpdateFailed", "x %d", 1)
	r.AnnotatedEventf(somePod("u"), nil, "Normal", "ProviderDeleteSuccess", "x")
	r.Event(somePod("u"), "Warning", "FailedMount", "y")
	close(f.Events)
	var got []string
	for e := range f.Events {
		got = append(got, e)
	}
	if strings.Join(got, "|") != "Warning FailedMount y" {
		t.Errorf("events %q", got)
	}
}

func facts() host.Facts {
	return host.Facts{Hostname: "box", Addresses: []net.IP{net.IPv4(10, 1, 2, 3), net.IPv4(10, 9, 9, 9)}, Architecture: "amd64", OS: "linux",
		KernelVersion: "6.1", OSImage: "Debian", MachineID: "m", BootID: "b", SystemUUID: "s", CPUs: 2, MemoryBytes: 4 << 30,
		RootDiskBytes: 100 << 30, HugePages: map[string]int64{"2MB": 512 << 20, "1GB": 0}}
}

func TestNodeObject(t *testing.T) {
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	n := nodeObject(Registration{NodeName: "n1", MaxPods: 110, Labels: map[string]string{"disk": "ssd"}, Taints: []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoSchedule}}},
		NodeInfo{Facts: facts(), RuntimeName: "containerd", RuntimeVersion: "v2.1.4", KubeletVersion: "v1.37.1"},
		[]Condition{{v1.NodeReady, v1.ConditionTrue, "KubeletReady", "kubelet is posting ready status"}}, nil, 10250, at)
	if d := cmp.Diff(map[string]string{
		"kubernetes.io/hostname": "n1", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
		"beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64", "disk": "ssd",
	}, n.Labels); d != "" {
		t.Error(d)
	}
	got := map[string]string{}
	for k, q := range n.Status.Capacity {
		got["capacity "+string(k)] = q.String()
	}
	for k, q := range n.Status.Allocatable {
		got["allocatable "+string(k)] = q.String()
	}
	if d := cmp.Diff(map[string]string{
		"capacity cpu": "2", "capacity memory": "4Gi", "capacity pods": "110", "capacity ephemeral-storage": "100Gi",
		"capacity hugepages-2Mi": "512Mi", "capacity hugepages-1Gi": "0",
		// 4 Gi minus 100 Mi of eviction threshold and 512 Mi of huge pages.
		"allocatable cpu": "2", "allocatable memory": "3484Mi", "allocatable pods": "110", "allocatable ephemeral-storage": "90Gi",
		"allocatable hugepages-2Mi": "512Mi", "allocatable hugepages-1Gi": "0",
	}, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.1.2.3"}, {Type: v1.NodeHostName, Address: "n1"}}, n.Status.Addresses); d != "" {
		t.Error(d)
	}
	if i := n.Status.NodeInfo; i.ContainerRuntimeVersion != "containerd://2.1.4" || i.KubeletVersion != "v1.37.1" || i.MachineID != "m" || i.BootID != "b" || i.SystemUUID != "s" {
		t.Errorf("node info %+v", i)
	}
	if n.Status.DaemonEndpoints.KubeletEndpoint.Port != 10250 || n.Spec.Taints[0].Key != "k" {
		t.Errorf("endpoint or taint: %+v %+v", n.Status.DaemonEndpoints, n.Spec.Taints)
	}
	for label := range n.Labels {
		if label == "kubernetes.io/role" {
			t.Error("kubernetes.io/role is forbidden to a node")
		}
	}
}

func TestPodsPerCore(t *testing.T) {
	for _, tc := range []struct {
		perCore int64
		cpus    int
		want    int64
	}{{0, 4, 110}, {10, 4, 40}, {100, 4, 110}, {10, 0, 0}} {
		r := Registration{MaxPods: 110, PodsPerCore: tc.perCore}
		if got := r.maxPods(tc.cpus); got != tc.want {
			t.Errorf("%d for each of %d CPUs: %d pods, want %d", tc.perCore, tc.cpus, got, tc.want)
		}
	}
}

func TestAllocatableIsNeverNegative(t *testing.T) {
	a := allocatableOf(capacityOf(host.Facts{CPUs: 1, MemoryBytes: 1 << 20}, 1), nil)
	if q := a[v1.ResourceMemory]; q.Sign() != 0 {
		t.Errorf("allocatable memory of a tiny machine is %s", q.String())
	}
}

func TestHugePageNames(t *testing.T) {
	for size, want := range map[string]string{"2MB": "hugepages-2Mi", "1GB": "hugepages-1Gi", "2048kB": "hugepages-2Mi", "64KB": "hugepages-64Ki", "2Mi": "hugepages-2Mi", "x": "", "MB": "", "2XB": ""} {
		if got, ok := hugePageResource(size); string(got) != want || ok != (want != "") {
			t.Errorf("%s: %q %v, want %q", size, got, ok, want)
		}
	}
}

func TestReportedVersionIsNeverNewer(t *testing.T) {
	own := builtVersion()
	for server, want := range map[string]string{"v1.30.2": "v1.30.2", "v1.30.2+k3s1": "v1.30.2", "v1.36.0-eks-1a2b": "v1.36.0-eks-1a2b", "v1.99.0": own, own: own, "nonsense": own, "": own} {
		if got := ReportedVersion(server); got != want {
			t.Errorf("server %q: reports %q, want %q", server, got, want)
		}
	}
}

func TestNodeImages(t *testing.T) {
	var in []*runtimeapi.Image
	for i := range 60 {
		in = append(in, &runtimeapi.Image{RepoTags: []string{"r/" + string(rune('A'+i))}, Size: uint64(i)})
	}
	in = append(in, &runtimeapi.Image{Size: 1 << 40}, &runtimeapi.Image{RepoDigests: []string{"d1", "d2", "d3"}, RepoTags: []string{"t1", "t2", "t3"}, Size: 1 << 30})
	out := NodeImages(in, 50)
	if len(out) != 50 || out[0].SizeBytes != 1<<30 || strings.Join(out[0].Names, " ") != "d1 d2 d3 t1 t2" || out[1].SizeBytes != 59 {
		t.Errorf("%d images, first %+v, then %+v", len(out), out[0], out[1])
	}
	if none, all := NodeImages(in, 0), NodeImages(in, -1); len(none) != 0 || len(all) != 61 {
		t.Errorf("with a limit of 0 there are %d images, without one %d", len(none), len(all))
	}
}

func patched(t *testing.T, server *v1.Node, patch []byte) *v1.Node {
	t.Helper()
	before, err := json.Marshal(server)
	testutil.Must(t, err)
	after, err := strategicpatch.StrategicMergePatch(before, patch, v1.Node{})
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	var n v1.Node
	testutil.Must(t, json.Unmarshal(after, &n))
	return &n
}

func TestRewritePatch(t *testing.T) {
	t0 := metav1.NewTime(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	now := t0.Add(time.Hour)
	server := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{lastAppliedStatus: "left by another", "mine": "1"}},
		Status: v1.NodeStatus{
			Addresses: []v1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.1"}, {Type: "Hostname", Address: "n1"}},
			Conditions: []v1.NodeCondition{
				{Type: "Ready", Status: "Unknown", Reason: "NodeStatusUnknown", LastTransitionTime: t0},
				{Type: "DiskPressure", Status: "False", LastTransitionTime: t0},
				{Type: "Foreign", Status: "True", LastTransitionTime: t0},
			}}}
	want := []v1.NodeAddress{{Type: "InternalIP", Address: "10.0.0.2"}, {Type: "InternalIP", Address: "fd00::2"}, {Type: "Hostname", Address: "n1"}}
	in := `{"metadata":{"annotations":{"virtual-kubelet.io/last-applied-node-status":"S","virtual-kubelet.io/last-applied-object-meta":"M"}},
	 "status":{"$setElementOrder/conditions":[{"type":"Ready"},{"type":"DiskPressure"}],
	 "conditions":[{"type":"Ready","status":"True","reason":"KubeletReady","lastHeartbeatTime":"2026-03-01T13:00:00Z","lastTransitionTime":"2020-01-01T00:00:00Z"},
	               {"type":"DiskPressure","lastHeartbeatTime":"2026-03-01T13:00:00Z","lastTransitionTime":"2020-01-01T00:00:00Z"}]}}`
	out, applied, err := rewritePatch([]byte(in), server, want, now)
	testutil.Must(t, err)
	if d := cmp.Diff(map[string]string{lastAppliedStatus: "S", lastAppliedMeta: "M"}, applied); d != "" {
		t.Error(d)
	}
	n := patched(t, server, out)
	if d := cmp.Diff(want, n.Status.Addresses); d != "" {
		t.Errorf("addresses: %s", d)
	}
	if d := cmp.Diff(map[string]string{"mine": "1"}, n.Annotations); d != "" {
		t.Errorf("annotations: %s", d)
	}
	at := map[v1.NodeConditionType]time.Time{}
	for _, c := range n.Status.Conditions {
		at[c.Type] = c.LastTransitionTime.Time
	}
	if !at["Ready"].Equal(now) {
		t.Errorf("Ready changed its status; transition %s, want now", at["Ready"])
	}
	if !at["DiskPressure"].Equal(t0.Time) || !at["Foreign"].Equal(t0.Time) {
		t.Errorf("conditions that did not change: %v, want %s", at, t0)
	}
	// Correct addresses are not patched.
	server.Status.Addresses = want
	out, _, err = rewritePatch([]byte(in), server, want, now)
	testutil.Must(t, err)
	if strings.Contains(string(out), "addresses") {
		t.Errorf("addresses are patched without need: %s", out)
	}
}

func testPods(t *testing.T, client *fake.Clientset) *PodSource {
	t.Helper()
	pods, err := NewPodSource(client, "n1")
	testutil.Must(t, err)
	return pods
}

func newTestNode(t *testing.T, client *fake.Clientset, l *loop) (*Node, func()) {
	t.Helper()
	n, err := New(Config{Client: client, LeaseClient: client, Recorder: record.NewFakeRecorder(100), Pods: testPods(t, client), Source: l, Loop: l, Held: l,
		Registration: Registration{NodeName: "n1"}, Info: NodeInfo{Facts: facts(), RuntimeName: "containerd", RuntimeVersion: "2.1.4"},
		RepairInterval: 10 * time.Millisecond})
	testutil.Must(t, err)
	end := testutil.Go(t.Context(), n.Run)
	stop := sync.OnceFunc(func() {
		if err := end(); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return n, stop
}

func TestNodeLife(t *testing.T) {
	client := fake.NewSimpleClientset()
	l := &loop{}
	n, stop := newTestNode(t, client, l)
	ctx := t.Context()
	get := func() *v1.Node {
		node, err := client.CoreV1().Nodes().Get(ctx, "n1", metav1.GetOptions{})
		if err != nil {
			return &v1.Node{}
		}
		return node
	}
	ready := func() v1.NodeCondition {
		for _, c := range get().Status.Conditions {
			if c.Type == v1.NodeReady {
				return c
			}
		}
		return v1.NodeCondition{}
	}
	<-n.Registered()
	if c := ready(); c.Status != v1.ConditionFalse || c.Reason != "KubeletNotReady" {
		t.Errorf("at first: %+v", c)
	}
	if a := get().Status.Addresses; len(a) != 2 {
		t.Errorf("addresses at registration: %v", a)
	}
	n.SetReady(true, "", "")
	testutil.Eventually(t, "Ready", func() bool {
		c := ready()
		return c.Status == v1.ConditionTrue && c.Reason == "KubeletReady" && c.Message == "kubelet is posting ready status"
	})
	n.SetReady(false, "", "container runtime is down: connection refused")
	testutil.Eventually(t, "NotReady with its cause", func() bool {
		return ready().Message == "container runtime is down: connection refused"
	})
	n.SetReady(true, "", "")
	testutil.Eventually(t, "Ready again", func() bool { return ready().Status == v1.ConditionTrue })
	testutil.Eventually(t, "a lease", func() bool {
		lease, err := client.CoordinationV1().Leases("kube-node-lease").Get(ctx, "n1", metav1.GetOptions{})
		return err == nil && *lease.Spec.HolderIdentity == "n1" && *lease.Spec.LeaseDurationSeconds == 40
	})
	if a := get().Annotations; a[lastAppliedStatus] != "" || a[lastAppliedMeta] != "" {
		t.Errorf("bookkeeping annotations are on the object: %v", a)
	}

	// The node controller writes Unknown; it must be corrected.
	wrong := get()
	for i := range wrong.Status.Conditions {
		wrong.Status.Conditions[i].Status = v1.ConditionUnknown
		wrong.Status.Conditions[i].Reason = "NodeStatusUnknown"
	}
	if _, err := client.CoreV1().Nodes().UpdateStatus(ctx, wrong, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "conditions put right", func() bool {
		c := ready()
		return c.Status == v1.ConditionTrue && c.Reason == "KubeletReady"
	})

	// A deleted node is recreated at once.
	testutil.Must(t, client.CoreV1().Nodes().Delete(ctx, "n1", metav1.DeleteOptions{}))
	testutil.Eventually(t, "the node registered again", func() bool { return ready().Status == v1.ConditionTrue && len(get().Status.Addresses) == 2 })
	stop()
}

func TestPodsReachTheLoop(t *testing.T) {
	client := fake.NewSimpleClientset(somePod("u1"))
	l := &loop{}
	n, _ := newTestNode(t, client, l)
	testutil.Eventually(t, "the first pod", func() bool { return l.sawChange(pod.Ref{Namespace: "shop", Name: "web", UID: "u1"}) })
	if !n.Pods().HasSynced() {
		t.Error("the hook came before the cache was synced")
	}
	if p, err := n.Pods().Lister().Pods("shop").Get("web"); err != nil || p.UID != "u1" {
		t.Errorf("lister: %v %v", p, err)
	}
}

func TestRegistrationIsTriedAgain(t *testing.T) {
	client := fake.NewSimpleClientset()
	var mu sync.Mutex
	failures := 3
	client.PrependReactor("create", "nodes", failing(&mu, &failures))
	l := &loop{}
	n, _ := newTestNode(t, client, l)
	testutil.Receive(t, n.Registered(), 20*time.Second, "never registered")
	mu.Lock()
	defer mu.Unlock()
	if failures != 0 {
		t.Errorf("registered with %d failures to go", failures)
	}
}

func TestSetConditionGoesBeforeReady(t *testing.T) {
	s := newNodeStatus(Config{Registration: Registration{NodeName: "n1"}})
	c := Condition{"LinkUp", v1.ConditionFalse, "LinkLost", "no route"}
	if !s.setCondition(c) || s.setCondition(c) {
		t.Error("a new condition is a change, the same again is none")
	}
	n := s.node(time.Now(), true)
	if last := n.Status.Conditions[len(n.Status.Conditions)-1]; last.Type != v1.NodeReady {
		t.Errorf("last condition is %s, want Ready", last.Type)
	}
}

func TestConfigListsWhatIsMissing(t *testing.T) {
	_, err := New(Config{LeaseDuration: 1500 * time.Millisecond})
	if err == nil {
		t.Fatal("an empty config is taken")
	}
	for _, want := range []string{"Client", "LeaseClient", "Recorder", "Pods", "Source", "Loop", "Held", "NodeName", "LeaseDuration"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not named in: %v", want, err)
		}
	}
}

var errAway = apierrors.NewInternalError(errors.New("etcd is away"))

// TestRebooted: a report that changes the boot ID emits the event once, as a kubelet does, and not
// for a node that was never reported.
func TestRebooted(t *testing.T) {
	ctx := t.Context()
	client := fake.NewSimpleClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{AnnotationDriver: driverName}}})
	recorder := record.NewFakeRecorder(10)
	n, err := New(Config{Client: client, LeaseClient: client, Recorder: recorder, Pods: testPods(t, client), Source: &loop{}, Loop: &loop{}, Held: &loop{},
		Registration: Registration{NodeName: "n1"}, Info: NodeInfo{Facts: facts()}})
	testutil.Must(t, err)
	report := func(boot string) {
		t.Helper()
		if _, err := n.nodes.Get(ctx, "n1", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		patch := `{"status":{"nodeInfo":{"bootID":"` + boot + `"}}}`
		if _, err := n.nodes.Patch(ctx, "n1", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	for _, boot := range []string{"one", "one", "two", "two"} {
		report(boot)
	}
	close(recorder.Events)
	var got []string
	for e := range recorder.Events {
		got = append(got, e)
	}
	if d := cmp.Diff([]string{"Warning Rebooted Node n1 has been rebooted, boot id: two"}, got); d != "" {
		t.Error(d)
	}
}

// TestEventsOfANewNode: a node that is created has a kubelet's events of its pressure conditions.
func TestEventsOfANewNode(t *testing.T) {
	client := fake.NewSimpleClientset()
	recorder := record.NewFakeRecorder(100)
	n, err := New(Config{Client: client, LeaseClient: client, Recorder: recorder, Pods: testPods(t, client), Source: &loop{}, Loop: &loop{}, Held: &loop{},
		Registration: Registration{NodeName: "n1"}, Info: NodeInfo{Facts: facts()}})
	testutil.Must(t, err)
	for range 2 { // the second one fails: it exists
		_, _ = n.nodes.Create(t.Context(), &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	}
	close(recorder.Events)
	var got []string
	for e := range recorder.Events {
		got = append(got, e)
	}
	if d := cmp.Diff([]string{
		"Normal NodeHasSufficientMemory Node n1 status is now: NodeHasSufficientMemory",
		"Normal NodeHasNoDiskPressure Node n1 status is now: NodeHasNoDiskPressure",
		"Normal NodeHasSufficientPID Node n1 status is now: NodeHasSufficientPID",
	}, got); d != "" {
		t.Error(d)
	}
}

// TestSchedulableEvents: a cordon and its end have a kubelet's events, once each, and a node that is
// cordoned already when it is first reported has the first.
func TestSchedulableEvents(t *testing.T) {
	client := fake.NewSimpleClientset()
	recorder := record.NewFakeRecorder(100)
	n, err := New(Config{Client: client, LeaseClient: client, Recorder: recorder, Pods: testPods(t, client), Source: &loop{}, Loop: &loop{}, Held: &loop{},
		Registration: Registration{NodeName: "n1"}, Info: NodeInfo{Facts: facts()}})
	testutil.Must(t, err)
	seen := n.selfHandler()
	see := func(cordoned bool, driver string) {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{AnnotationDriver: driver}}, Spec: v1.NodeSpec{Unschedulable: cordoned}}
		node.Status.NodeInfo.KubeletVersion = "v1.37.1"
		seen.OnUpdate(nil, node)
	}
	see(true, "") // a kubelet's node
	for _, cordoned := range []bool{true, true, false, false, true} {
		see(cordoned, driverName)
	}
	close(recorder.Events)
	var got []string
	for e := range recorder.Events {
		got = append(got, e)
	}
	if d := cmp.Diff([]string{
		"Normal NodeNotSchedulable Node n1 status is now: NodeNotSchedulable",
		"Normal NodeSchedulable Node n1 status is now: NodeSchedulable",
		"Normal NodeNotSchedulable Node n1 status is now: NodeNotSchedulable",
	}, got); d != "" {
		t.Error(d)
	}
}
