package vktest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/record"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
)

// world is a node and a namespace in the lab, and three clients.
type world struct {
	t      *testing.T
	cfg    *rest.Config
	admin  kubernetes.Interface // for the test's own calls
	client kubernetes.Interface // for the controllers, through wire
	wire   *wire
	ns     string
	node   string
	ctx    context.Context
}

func newWorld(t *testing.T) *world {
	t.Helper()
	path := os.Getenv("BOWLINE_LAB_KUBECONFIG")
	if path == "" {
		t.Skip("set BOWLINE_LAB_KUBECONFIG to an administrator's kubeconfig of a lab cluster")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", path)
	testutil.Must(t, err)
	cfg.QPS = -1
	w := &world{t: t, cfg: cfg, wire: &wire{}, node: "vk-" + rand.String(8)}
	w.admin, err = kubernetes.NewForConfig(cfg)
	testutil.Must(t, err)
	w.client = w.clientWith(func(c *rest.Config) { c.Wrap(w.wire.wrap) })
	ctx, cancel := context.WithCancel(context.Background())
	w.ctx = ctx
	ns, err := w.admin.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "vk-"}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	w.ns = ns.Name
	t.Cleanup(func() {
		cancel()
		clean := context.Background()
		now := metav1.DeleteOptions{GracePeriodSeconds: new(int64)}
		_ = w.admin.CoreV1().Pods(w.ns).DeleteCollection(clean, now, metav1.ListOptions{})
		_ = w.admin.CoreV1().Namespaces().Delete(clean, w.ns, metav1.DeleteOptions{})
		_ = w.admin.CoreV1().Nodes().Delete(clean, w.node, now)
		_ = w.admin.CoordinationV1().Leases("kube-node-lease").Delete(clean, w.node, now)
	})
	return w
}

func (w *world) clientWith(change func(*rest.Config)) kubernetes.Interface {
	w.t.Helper()
	c := rest.CopyConfig(w.cfg)
	change(c)
	client, err := kubernetes.NewForConfig(c)
	testutil.Must(w.t, err)
	return client
}

// asNode has the node's own identity, under the Node authorizer and NodeRestriction.
func (w *world) asNode() kubernetes.Interface {
	return w.clientWith(func(c *rest.Config) {
		c.Impersonate = rest.ImpersonationConfig{UserName: "system:node:" + w.node, Groups: []string{"system:nodes", "system:authenticated"}}
	})
}

// newBareWorld has the node object, so that its pods are not garbage-collected.
func newBareWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	_, err := w.admin.CoreV1().Nodes().Create(w.ctx, &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node}}, metav1.CreateOptions{})
	testutil.Must(t, err)
	return w
}

func (w *world) pod(name string, change ...func(*v1.Pod)) *v1.Pod {
	w.t.Helper()
	no := false
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.ns}, Spec: v1.PodSpec{
		NodeName: w.node, AutomountServiceAccountToken: &no,
		Containers: []v1.Container{{Name: "main", Image: "registry.lab/pause:lab"}},
	}}
	for _, c := range change {
		c(p)
	}
	var made *v1.Pod
	w.until("the namespace's service account lets pods in", func() bool {
		var err error
		made, err = w.admin.CoreV1().Pods(w.ns).Create(w.ctx, p, metav1.CreateOptions{})
		if err != nil {
			w.t.Log(err)
		}
		return err == nil
	})
	return made
}

func (w *world) getPod(name string) *v1.Pod {
	p, err := w.admin.CoreV1().Pods(w.ns).Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return p
}

func (w *world) getNode() *v1.Node {
	n, err := w.admin.CoreV1().Nodes().Get(w.ctx, w.node, metav1.GetOptions{})
	if err != nil {
		return &v1.Node{}
	}
	return n
}

func (w *world) deletePod(name string, grace int64) {
	w.t.Helper()
	testutil.Must(w.t, w.admin.CoreV1().Pods(w.ns).Delete(w.ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &grace}))
}

// setStatus writes the pod's status as another controller does.
func (w *world) setStatus(name string, change func(*v1.PodStatus)) *v1.Pod {
	w.t.Helper()
	var out *v1.Pod
	w.until("status written", func() bool {
		p := w.getPod(name)
		change(&p.Status)
		var err error
		out, err = w.admin.CoreV1().Pods(w.ns).UpdateStatus(w.ctx, p, metav1.UpdateOptions{})
		return err == nil
	})
	return out
}

func runningStatus(s *v1.PodStatus) {
	s.Phase = v1.PodRunning
	s.ContainerStatuses = []v1.ContainerStatus{{Name: "main", Image: "x", ImageID: "x", Ready: true,
		State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: metav1.Now()}}}}
}

func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	testutil.Within(w.t, 30*time.Second, what, ok)
}

// stays checks that something holds for as long as its opposite took to appear.
func (w *world) stays(d time.Duration, what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(d); time.Now().Before(deadline); {
		if !ok() {
			w.t.Fatalf("did not last: %s", what)
		}
		select {
		case <-w.ctx.Done():
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (w *world) recorder(c kubernetes.Interface) record.EventRecorder {
	b := record.NewBroadcaster()
	b.StartRecordingToSink(&typedv1.EventSinkImpl{Interface: c.CoreV1().Events("")})
	w.t.Cleanup(b.Shutdown)
	return b.NewRecorder(scheme.Scheme, v1.EventSource{Component: "kubelet", Host: w.node})
}

// events are the reasons of the pod's events so far.
func (w *world) events(name string) []string {
	list, err := w.admin.CoreV1().Events(w.ns).List(w.ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
	testutil.Must(w.t, err)
	var reasons []string
	for _, e := range list.Items {
		reasons = append(reasons, e.Reason)
	}
	return reasons
}

// script is a provider as virtual-kubelet expects it: it holds pods by name.
type script struct {
	mu     sync.Mutex
	pods   map[string]*v1.Pod
	calls  []string // "create a", "delete b"
	create func(*v1.Pod) error
	// onDelete is called first in DeletePod.
	onDelete func(*v1.Pod)
	notify   func(*v1.Pod)
}

func newScript() *script { return &script{pods: map[string]*v1.Pod{}} }

func (s *script) note(verb string, p *v1.Pod) {
	s.calls = append(s.calls, verb+" "+p.Name)
}

func (s *script) saw(call string) bool { return s.count(call) > 0 }

func (s *script) count(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, c := range s.calls {
		if c == call {
			n++
		}
	}
	return n
}

func (s *script) held(name string) *v1.Pod {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.pods {
		if p.Name == name {
			return p
		}
	}
	return nil
}

func (s *script) CreatePod(_ context.Context, p *v1.Pod) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("create", p)
	if s.create != nil {
		if err := s.create(p); err != nil {
			return err
		}
	}
	s.pods[p.Namespace+"/"+p.Name] = p
	return nil
}

func (s *script) UpdatePod(_ context.Context, p *v1.Pod) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("update", p)
	s.pods[p.Namespace+"/"+p.Name] = p
	return nil
}

func (s *script) DeletePod(_ context.Context, p *v1.Pod) error {
	if s.onDelete != nil {
		s.onDelete(p)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.note("delete", p)
	return nil // its containers stop later
}

func (s *script) GetPod(_ context.Context, ns, name string) (*v1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p, ok := s.pods[ns+"/"+name]; ok {
		return p.DeepCopy(), nil
	}
	return nil, errdefs.NotFound(name)
}

func (s *script) GetPodStatus(ctx context.Context, ns, name string) (*v1.PodStatus, error) {
	p, err := s.GetPod(ctx, ns, name)
	if err != nil {
		return nil, err
	}
	return &p.Status, nil
}

func (s *script) GetPods(context.Context) ([]*v1.Pod, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*v1.Pod
	for _, p := range s.pods {
		out = append(out, p)
	}
	return out, nil
}

func (s *script) NotifyPods(_ context.Context, cb func(*v1.Pod)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notify = cb
}

func (s *script) changed(p *v1.Pod) {
	s.mu.Lock()
	cb := s.notify
	s.mu.Unlock()
	cb(p)
}

// alone runs virtual-kubelet's unmodified PodController.
func (w *world) alone(p vknode.PodLifecycleHandler, change ...func(*vknode.PodControllerConfig)) informers.SharedInformerFactory {
	w.t.Helper()
	pods := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", w.node).String()
	}))
	all := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithNamespace(w.ns))
	cfg := vknode.PodControllerConfig{
		PodClient: w.client.CoreV1(), PodInformer: pods.Core().V1().Pods(), EventRecorder: w.recorder(w.client), Provider: p,
		ConfigMapInformer: all.Core().V1().ConfigMaps(), SecretInformer: all.Core().V1().Secrets(), ServiceInformer: all.Core().V1().Services(),
	}
	for _, c := range change {
		c(&cfg)
	}
	pc, err := vknode.NewPodController(cfg)
	testutil.Must(w.t, err)
	pods.Start(w.ctx.Done())
	all.Start(w.ctx.Done())
	all.WaitForCacheSync(w.ctx.Done())
	go pc.Run(w.ctx, 4)
	select {
	case <-pc.Ready():
	case <-pc.Done():
		w.t.Fatalf("virtual-kubelet did not start: %v", pc.Err())
	case <-time.After(30 * time.Second):
		w.t.Fatal("virtual-kubelet did not start")
	}
	return pods
}

// ours is the node as Bowline runs it, with a loop that only records calls, and the real merge of
// syncloop/podconfig behind the informer.
type ours struct {
	node    *provider.Node
	mu      sync.Mutex
	hooks   []string           // "changed a", "terminate b"
	changes []podconfig.Change // the resulting changes of the api source
	held    map[string]*v1.Pod
	api     *podconfig.API
}

func (o *ours) PodChanged(r pod.Ref) {
	o.mu.Lock()
	o.hooks = append(o.hooks, "changed "+r.Name)
	o.mu.Unlock()
	o.api.Look(r.Namespace, r.Name)
}

func (o *ours) TerminateRequested(_, name string, _ types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hooks = append(o.hooks, "terminate "+name)
}

func (o *ours) PodByName(ns, name string) (*v1.Pod, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	p, ok := o.held[ns+"/"+name]
	return p, ok
}

func (o *ours) saw(hook string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Contains(o.hooks, hook)
}

// source lists the loop's changes of a pod: "ADD uid", "RECONCILE uid".
func (o *ours) source(name string) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var out []string
	for _, c := range o.changes {
		if c.Pod.Name == name {
			out = append(out, fmt.Sprintf("%s %s", c.Op, c.Pod.UID))
		}
	}
	return out
}

func (o *ours) got(op podconfig.Op, p *v1.Pod) bool {
	return slices.Contains(o.source(p.Name), fmt.Sprintf("%s %s", op, p.UID))
}

func (w *world) behind(change ...func(*provider.Config)) *ours {
	w.t.Helper()
	o := w.build(change...)
	w.start(o)
	return o
}

// added runs the node and a pod that the loop gets as added.
func (w *world) added(name string, change ...func(*v1.Pod)) (*ours, *v1.Pod) {
	w.t.Helper()
	o := w.behind()
	p := w.pod(name, change...)
	w.until("added", func() bool { return o.got(podconfig.Add, p) })
	return o, p
}

// created is added for virtual-kubelet alone.
func (w *world) created(name string, change ...func(*v1.Pod)) (*script, *v1.Pod) {
	w.t.Helper()
	s, p := newScript(), w.pod(name, change...)
	w.alone(s)
	w.until("created", func() bool { return s.saw("create " + name) })
	return s, p
}

func (w *world) build(change ...func(*provider.Config)) *ours {
	w.t.Helper()
	pods, err := provider.NewPodSource(w.client, w.node)
	testutil.Must(w.t, err)
	pc := podconfig.New(podconfig.SourceAPI)
	o := &ours{held: map[string]*v1.Pod{}, api: podconfig.NewAPI(pc, pods.Lister(), pods.HasSynced)}
	cfg := provider.Config{
		Client: w.client, LeaseClient: w.client, Recorder: w.recorder(w.client), Pods: pods, Source: o, Loop: o, Held: o,
		Registration: provider.Registration{NodeName: w.node},
		Info:         provider.NodeInfo{Facts: machine(), RuntimeName: "containerd", RuntimeVersion: "2.1.4"},
	}
	for _, c := range change {
		c(&cfg)
	}
	n, err := provider.New(cfg)
	testutil.Must(w.t, err)
	o.node = n
	_, err = pods.AddEventHandler(o.api.Handler(w.ctx))
	testutil.Must(w.t, err)
	go pc.Run(w.ctx)
	go func() {
		for {
			select {
			case <-w.ctx.Done():
				return
			case c := <-pc.Updates():
				o.mu.Lock()
				o.changes = append(o.changes, c)
				o.mu.Unlock()
			}
		}
	}()
	return o
}

func (w *world) start(o *ours) {
	w.t.Helper()
	done := make(chan error, 1)
	ctx, cancel := context.WithCancel(w.ctx)
	go func() { done <- o.node.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			w.t.Errorf("Run: %v", err)
		}
	})
	select {
	case <-o.node.Registered():
	case err := <-done:
		done <- err
		w.t.Fatalf("the node stopped: %v", err)
	case <-time.After(30 * time.Second):
		w.t.Fatal("the node did not register")
	}
	w.until("pods listed", o.node.Pods().HasSynced)
}

func machine() host.Facts {
	return host.Facts{Hostname: "m", OS: "linux", Architecture: "amd64", CPUs: 2, MemoryBytes: 4 << 30, RootDiskBytes: 50 << 30,
		KernelVersion: "6.1", OSImage: "Debian", MachineID: "m", BootID: "b", SystemUUID: "s"}
}
