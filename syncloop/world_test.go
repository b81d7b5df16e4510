package syncloop_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.opentelemetry.io/otel/trace"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/images"
	"github.com/bowline-k8s/bowline/syncloop/lifecycle"
	"github.com/bowline-k8s/bowline/syncloop/objects"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
	"github.com/bowline-k8s/bowline/syncloop/prober"
	"github.com/bowline-k8s/bowline/syncloop/status"
	"github.com/bowline-k8s/bowline/syncloop/statuswriter"
	"github.com/bowline-k8s/bowline/syncloop/tokens"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

const owner = "us"

// world is a host with a runtime, an API server, and the node between them, which may stop and
// start.
type world struct {
	t      testing.TB
	rt     *fake.Runtime
	api    *api
	dir    string
	host   *machine
	mu     sync.Mutex
	events []string
	about  []v1.ObjectReference // of events, in their order
	hook   host.Hook            // of CRI calls; nil: none
	policy admit.Policy
	claims volume.Claims
	// verbosity of the log.
	verbosity int
	// manifests is the directory of static pods; empty: the node has none.
	manifests string
	admitting *admit.Node // nil: the node takes every pod
	reread    func(context.Context) (admit.Node, error)
	goingDown atomic.Bool // the host, as admitting has it
	// allocatable of the node; empty: unknown.
	allocatable v1.ResourceList
	// userNamespaces: the runtime supports user namespaces.
	userNamespaces bool
	noDNS          bool // the cluster has no DNS
	pullRecords    bool // the host has the records of which pods may use which image
	// hostIP is the host's address; nil: 192.0.2.1.
	hostIP atomic.Pointer[string]
	// resolv reads the host's resolv.conf; nil: it has none.
	resolv func(context.Context) ([]byte, error)
	// sandboxMade receives the config of each new sandbox; nil: it is dropped.
	sandboxMade func(*runtimeapi.PodSandboxConfig)
	services    cache.Indexer        // the cluster's
	registry    metrics.KubeRegistry // of the node's metrics; nil: it has none
	tracer      trace.Tracer         // nil: there are no traces

	node *node
}

// madeBy passes the configs of new sandboxes to its test.
type madeBy struct {
	syncloop.Runtime
	show func(*runtimeapi.PodSandboxConfig)
}

func (m madeBy) RunPodSandbox(ctx context.Context, c *runtimeapi.PodSandboxConfig, handler string) (string, error) {
	if m.show != nil {
		m.show(c)
	}
	return m.Runtime.RunPodSandbox(ctx, c, handler)
}

// machine returns the host that the specs are made from.
func (w *world) machine() spec.Machine {
	m := spec.Machine{RootDir: filepath.Join(w.dir, "root"), PodLogsDir: filepath.Join(w.dir, "logs"), CgroupDriver: "cgroupfs",
		CgroupVersion: 2, CPUCFSQuota: true, Owner: owner, Hostname: "machine", MemoryBytes: 1 << 30, CPUs: 2, HostIPs: []string{"192.0.2.1"},
		ClusterDNS: []string{"198.51.100.53"}, ClusterDomain: "cluster.local", HostResolv: []byte("nameserver 192.0.2.99\n")}
	if w.noDNS {
		m.ClusterDNS = nil
	}
	if ip := w.hostIP.Load(); ip != nil {
		m.HostIPs = []string{*ip}
	}
	return m
}

// machine is the local host below a temporary directory, with mounts and cgroups in memory, so that
// tests need not run as root.
type machine struct {
	host.Host
	mu     sync.Mutex
	mounts []host.Mount

	inUse       atomic.Bool // no mount can be unmounted
	unreachable atomic.Bool
	full        atomic.Bool // nothing more can be written
	noCgroups   atomic.Bool // no cgroup can be made
	noDirs      atomic.Bool // Make fails
	unwritten   atomic.Int32
	lost        atomic.Bool // List fails as unreachable
	looks       atomic.Int32
	manifests   string // the manifest directory; set while no node is up
	cgroups     map[string]bool
	sets        []string // each change of cgroup limits, in order with the runtime's log
	rt          *fake.Runtime
	// hold, if not nil, blocks RemoveCgroup, the last step of a pod's release.
	hold chan struct{}
}

// WriteTree fails as unreachable while unreachable is set, and as out of space while full is set,
// and counts both.
func (m *machine) WriteTree(ctx context.Context, dir string, tree host.Tree) error {
	if m.unreachable.Load() {
		m.unwritten.Add(1)
		return fmt.Errorf("write %s: %w", dir, host.ErrUnreachable)
	}
	if m.full.Load() {
		m.unwritten.Add(1)
		return fmt.Errorf("write %s: %w", dir, syscall.ENOSPC)
	}
	return m.Host.WriteTree(ctx, dir, tree)
}

// List counts how often the manifests are listed.
func (m *machine) List(ctx context.Context, dir string) ([]host.FileInfo, error) {
	if dir == m.manifests {
		defer m.looks.Add(1)
	}
	if m.lost.Load() {
		return nil, fmt.Errorf("list %s: %w", dir, host.ErrUnreachable)
	}
	return m.Host.List(ctx, dir)
}

func (m *machine) Mount(_ context.Context, mount host.Mount) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mounts = append(m.mounts, mount)
	return nil
}

func (m *machine) Unmount(_ context.Context, target string) error {
	if m.inUse.Load() {
		return &host.BusyError{Target: target, Type: "ext4", Source: "/dev/sdb", Users: []string{"42 (postgres)"}}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.mounts = slices.DeleteFunc(m.mounts, func(x host.Mount) bool { return x.Target == target })
	return nil
}

func (m *machine) ListMounts(_ context.Context, dir string) ([]host.Mount, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var out []host.Mount
	for _, x := range m.mounts {
		if x.Target == dir || strings.HasPrefix(x.Target, dir+"/") {
			out = append(out, x)
		}
	}
	return out, nil
}

func (m *machine) RemoveTree(ctx context.Context, dir string, unmount ...string) error {
	if !m.inUse.Load() {
		for _, target := range unmount {
			_ = m.Unmount(ctx, target)
		}
	}
	if left, _ := m.ListMounts(ctx, dir); len(left) > 0 {
		return fmt.Errorf("remove tree %s: %s: %w", dir, left[0].Target, host.ErrMountInside)
	}
	return m.Host.RemoveTree(ctx, dir)
}

func (m *machine) BindSubPath(ctx context.Context, s host.SubPath) error {
	return m.Mount(ctx, host.Mount{Source: s.Root + "/" + s.Path, Target: s.Target, Type: "bind"})
}

func (m *machine) Make(ctx context.Context, things ...host.Entry) ([]bool, error) {
	if m.noDirs.Load() {
		return nil, fmt.Errorf("make %s: %w", things[0].Path, syscall.EROFS)
	}
	return m.Host.Make(ctx, things...)
}

func (m *machine) EnsureCgroup(_ context.Context, path string, r host.CgroupResources) error {
	if m.noCgroups.Load() {
		return fmt.Errorf("write %s: %w", path, syscall.EIO)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.cgroups[path] = true
	updates := 0 // container updates before this change
	for _, e := range m.rt.Log() {
		if e.Op == fake.OpUpdate {
			updates++
		}
	}
	m.sets = append(m.sets, fmt.Sprintf("%d: shares %d quota %d memory %d", updates, r.CPUShares, r.CPUQuotaUS, r.MemoryBytes))
	return nil
}

func (m *machine) RemoveCgroup(ctx context.Context, path string, _ bool) error {
	if m.hold != nil {
		select {
		case <-m.hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.cgroups, path)
	return nil
}

func (m *machine) cgroupCount() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.cgroups)
}

// newWorld makes a world whose node is down; up starts it.
func newWorld(t testing.TB, c fake.Config) *world {
	t.Helper()
	h, err := local.New(local.Config{})
	testutil.Must(t, err)
	w := &world{t: t, rt: fake.Run(t, c), api: newAPI(t), dir: ownDir(t),
		host:     &machine{Host: h, cgroups: map[string]bool{}},
		services: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
	w.host.rt = w.rt
	t.Cleanup(func() {
		if t.Failed() {
			w.dumpPods()
		}
		w.down()
		w.checkLog()
		if t.Failed() {
			w.dump()
		}
	})
	return w
}

// ownDir returns a directory for the test alone. It retries the removal: host/local lets go of a
// call whose context has ended, which may still write a file.
func ownDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "syncloop")
	testutil.Must(t, err)
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); ; goruntime.Gosched() {
			if err := os.RemoveAll(dir); err == nil {
				return
			} else if time.Now().After(end) {
				t.Error(err)
				return
			}
		}
	})
	return dir
}

// newParallelWorld is newWorld for a test that runs beside others.
func newParallelWorld(t *testing.T) *world {
	t.Helper()
	t.Parallel()
	return newWorld(t, fake.Config{})
}

// up is newParallelWorld with the node up.
func up(t *testing.T) *world {
	t.Helper()
	w := newParallelWorld(t)
	w.up()
	return w
}

// node is one run of the process.
type node struct {
	loop    *syncloop.Loop
	pleg    *pleg.Generator
	cancel  context.CancelFunc
	ended   sync.WaitGroup
	client  *cri.Client
	log     klog.Logger
	sources *podconfig.PodConfig
}

// errorLogs returns the errors that this run has logged.
func (n *node) errorLogs() []string {
	var out []string
	for _, e := range n.log.GetSink().(ktesting.Underlier).GetBuffer().Data() {
		if e.Type == ktesting.LogError {
			out = append(out, e.Message)
		}
	}
	return out
}

// recorder collects events as "TYPE REASON MESSAGE".
type recorder struct{ w *world }

func (r recorder) Event(o runtime.Object, kind, reason, message string) {
	r.w.mu.Lock()
	defer r.w.mu.Unlock()
	about := v1.ObjectReference{}
	if ref, ok := o.(*v1.ObjectReference); ok {
		about = *ref
	}
	r.w.about = append(r.w.about, about)
	r.w.events = append(r.w.events, kind+" "+reason+" "+message)
}

func (r recorder) Eventf(o runtime.Object, kind, reason, format string, args ...any) {
	r.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

func (r recorder) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

type podEvents struct{ recorder }

func (e podEvents) Event(p *v1.Pod, container, kind, reason, message string) {
	syncloop.Event(e.recorder, p, container, kind, reason, message)
}

// warnings returns the events of type Warning.
func (w *world) warnings() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(w.events), func(e string) bool { return !strings.HasPrefix(e, "Warning ") })
}

// event reports whether an event that begins with this text was recorded.
func (w *world) event(prefix string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(w.events, func(e string) bool { return strings.HasPrefix(e, prefix) })
}

// eventsOf returns the events with this reason, each as "KIND/NAME FIELD: MESSAGE".
func (w *world) eventsOf(reason string) (found []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, e := range w.events {
		if words := strings.SplitN(e, " ", 3); words[1] == reason {
			found = append(found, fmt.Sprintf("%s/%s %s: %s", w.about[i].Kind, w.about[i].Name, w.about[i].FieldPath, words[2]))
		}
	}
	return found
}

// wantEvent fails the test if no event that begins with this text was recorded.
func (w *world) wantEvent(prefix string) {
	w.t.Helper()
	if !w.event(prefix) {
		w.t.Errorf("no event %q; the warnings are %q", prefix, w.warnings())
	}
}

// criHook is the hook of every CRI call; a test may change it at any time.
func (w *world) criHook(ctx context.Context, label string, call func(context.Context) error) error {
	w.mu.Lock()
	h := w.hook
	w.mu.Unlock()
	return h.Do(ctx, label, call)
}

func (w *world) setHook(h host.Hook) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.hook = h
}

// up starts a node on the existing state: the first one, or the next run of the process.
func (w *world) up() {
	w.t.Helper()
	n, err := w.build()
	if err != nil {
		w.t.Fatal(err)
	}
	w.node = n
}

func (w *world) build() (*node, error) {
	w.host.manifests = w.manifests
	log := ktesting.NewLogger(w.t, ktesting.NewConfig(ktesting.Verbosity(w.verbosity), ktesting.BufferLogs(true)))
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), log))
	n := &node{cancel: cancel, log: log}
	client, err := cri.Connect(ctx, cri.Config{Dial: w.rt.Dial, Hook: w.criHook})
	if err != nil {
		cancel()
		return nil, err
	}
	n.client = client
	core := w.api.client.CoreV1()
	c := syncloop.Config{
		Runtime: madeBy{client, w.sandboxMade}, Host: w.host, Sources: podconfig.New(w.sources()...), Recorder: recorder{w},
		Hooks:    &lifecycle.Runner{Exec: client, Dial: w.host},
		Services: corelisters.NewServiceLister(w.services), Tracer: w.tracer,
		Machine: w.machine, HostResolv: w.resolv,
		RuntimeHandler: func(ctx context.Context, class string) (string, error) {
			c, err := w.api.client.NodeV1().RuntimeClasses().Get(ctx, class, metav1.GetOptions{})
			if err != nil {
				return "", err
			}
			return c.Handler, nil
		},
		Allocatable:    func() v1.ResourceList { return w.allocatable },
		UserNamespaces: func(string) bool { return w.userNamespaces },
		NodeName:       "node", Policy: w.policy, RuntimeName: "containerd", ContainerLogsDir: filepath.Join(w.dir, "links"),
	}
	if w.registry != nil {
		c.Metrics = syncloop.NewMetrics(w.registry)
	}
	if w.admitting != nil {
		c.Node = func() admit.Node {
			n := *w.admitting
			n.GoingDown = w.goingDown.Load()
			return n
		}
		c.Reread = w.reread
	}
	if c.PLEG, err = pleg.New(pleg.Config{Runtime: client, Files: w.host, Owner: owner, IsNotFound: cri.IsNotFound, IsTransport: cri.IsTransport,
		Hints: hints(client), Relist: 100 * time.Millisecond}); err != nil {
		return nil, err
	}
	n.pleg, n.sources = c.PLEG, c.Sources
	if c.Objects, err = objects.New(objects.Config{Client: w.api.client}); err != nil {
		return nil, err
	}
	if c.Tokens, err = tokens.New(tokens.Config{Client: core}); err != nil {
		return nil, err
	}
	if c.Volumes, err = volume.New(volume.Config{Host: w.host, Objects: c.Objects, Tokens: c.Tokens, RootDir: c.Machine().RootDir, Claims: w.claims,
		Allow: func(p *v1.Pod, name string, pv *v1.PersistentVolume, has bool) error {
			return n.loop.AllowVolume(p, name, pv, has)
		},
		Allocatable: func() v1.ResourceList { return nil }}); err != nil {
		return nil, err
	}
	pulls := images.Config{Runtime: client, Events: podEvents{recorder{w}}, Transport: cri.IsTransport}
	if w.pullRecords {
		pulls.Files, pulls.RecordPath = w.host, images.RecordFile(c.Machine().RootDir)
	}
	if c.Images, err = images.New(pulls); err != nil {
		return nil, err
	}
	if c.Prober, err = prober.New(prober.Config{Exec: client, Dialer: w.host, Event: podEvents{recorder{w}}.Event}); err != nil {
		return nil, err
	}
	if c.Status, err = statuswriter.New(statuswriter.Config{Pods: core, Merge: status.Merge,
		Mirror: c.Sources.Object, Changed: func(ref pod.Ref) { n.loop.Wake(ref.UID) }, MinBackoff: 20 * time.Millisecond, MaxBackoff: 200 * time.Millisecond}); err != nil {
		return nil, err
	}
	if n.loop, err = syncloop.New(c); err != nil {
		return nil, err
	}
	if err := c.PLEG.Relist(ctx); err != nil {
		log.V(1).Info("The first look failed", "err", err) // the loop must cope with it
	}
	runs := []func(context.Context) error{c.PLEG.Run, c.Sources.Run, c.Objects.Run, c.Tokens.Run, c.Prober.Run, c.Status.Run, n.loop.Run}
	for _, run := range append(runs, w.static(n)...) {
		n.ended.Go(func() {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				w.t.Errorf("a part ended: %v", err)
			}
		})
	}
	w.api.show(c.Sources)
	return n, nil
}

// down stops the node, like a restart of the process, and waits for it.
func (w *world) down() {
	if w.node == nil {
		return
	}
	w.api.hide()
	w.node.cancel()
	ended := make(chan struct{})
	go func() { defer close(ended); w.node.ended.Wait() }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		buf := make([]byte, 1<<20)
		w.t.Errorf("the node did not end:\n%s", buf[:goruntime.Stack(buf, true)])
	}
	_ = w.node.client.Close()
	w.node = nil
}

// hints adapts the runtime's event stream to pleg.
func hints(client *cri.Client) func(context.Context) (<-chan pleg.Hint, error) {
	return func(ctx context.Context) (<-chan pleg.Hint, error) {
		events, err := client.Events(ctx)
		if err != nil {
			return nil, err
		}
		out := make(chan pleg.Hint)
		go func() {
			defer close(out)
			for e := range events {
				h := pleg.Hint{ID: e.ContainerID, Expect: pleg.Ended}
				if e.Type == cri.EventStarted {
					h.Expect = pleg.Started
				}
				select {
				case out <- h:
				case <-ctx.Done():
				}
			}
		}()
		return out, nil
	}
}

// until waits for a condition and checks it every few milliseconds.
func (w *world) until(what string, cond func() bool) {
	w.t.Helper()
	testutil.Within(w.t, time.Minute, what, cond) // long, because a busy machine is slow; a correct run does not wait
}

func (w *world) untilReady(name string) *v1.Pod {
	w.t.Helper()
	w.until("pod "+name+" is ready", func() bool { return ready(w.api.pod(name)) })
	return w.api.pod(name)
}

// createReady creates the pod and waits until it is ready.
func (w *world) createReady(p *v1.Pod) *v1.Pod {
	w.t.Helper()
	w.api.create(p)
	return w.untilReady(p.Name)
}

// end deletes these pods, with a grace period in seconds, and waits until every pod is gone.
func (w *world) end(grace int64, names ...string) {
	w.t.Helper()
	for _, name := range names {
		w.api.delete(name, grace)
	}
	w.untilGone()
}

// untilGone waits until every pod is gone: no object, nothing in the runtime, no cgroup, no worker.
func (w *world) untilGone() {
	w.t.Helper()
	w.until("every pod has gone, object and remains", func() bool {
		return len(w.api.names()) == 0 && len(w.left()) == 0 && w.host.cgroupCount() == 0
	})
}

// left returns what the runtime still has of this owner's pods.
func (w *world) left() []string {
	ids := map[string]string{}
	for _, e := range w.rt.Log() {
		switch e.Op {
		case fake.OpRunSandbox:
			ids[e.ID] = "sandbox of " + e.Pod
		case fake.OpCreate:
			ids[e.ID] = "container " + e.Name + " of " + e.Pod
		case fake.OpRemove, fake.OpRemoveSandbox:
			delete(ids, e.ID)
		}
	}
	var out []string
	for id, what := range ids {
		if !strings.Contains(what, "foreign") {
			out = append(out, what+" "+id)
		}
	}
	slices.Sort(out)
	return out
}

// checkLog looks for what must never happen, whatever went wrong: two live instances of one
// container, two live sandboxes of one pod, one attempt started twice.
func (w *world) checkLog() {
	live, sandbox := map[string]string{}, map[string]string{}
	attempts := map[string]bool{}
	for _, e := range w.rt.Log() {
		key := e.Pod + " " + e.Name
		switch e.Op {
		case fake.OpRunSandbox:
			if other := sandbox[e.Pod]; other != "" {
				w.t.Errorf("pod %s got sandbox %.12s while %.12s was ready", e.Pod, e.ID, other)
			}
			sandbox[e.Pod] = e.ID
		case fake.OpStopSandbox:
			if sandbox[e.Pod] == e.ID {
				delete(sandbox, e.Pod)
			}
		case fake.OpStart:
			if other := live[key]; other != "" {
				w.t.Errorf("container %s was started as %.12s while %.12s was running", key, e.ID, other)
			}
			live[key] = e.ID
			if a := fmt.Sprintf("%s %d", key, e.Attempt); attempts[a] {
				w.t.Errorf("container %s: attempt %d was started twice", key, e.Attempt)
			} else {
				attempts[a] = true
			}
		case fake.OpExit:
			if live[key] == e.ID {
				delete(live, key)
			}
		}
	}
}

// dumpPods logs the state of each pod, for a test that failed while the node is up.
func (w *world) dumpPods() {
	if w.node == nil {
		return
	}
	for _, p := range w.node.loop.Pods() {
		s := w.node.loop.State(p.UID)
		w.t.Logf("%s (%s): %s %s; worker: %t, %v, %s", p.Name, p.UID, p.Status.Phase, p.Status.Reason, s.Managed, s.Phase, w.why(p.Name))
	}
}

// dump logs what happened, for a test that failed.
func (w *world) dump() {
	for _, e := range w.rt.Log() {
		w.t.Logf("%s %-12s %s %s/%d %.12s %d %s", e.Time.Format("05.000"), e.Op, e.Pod, e.Name, e.Attempt, e.ID, e.Code, e.Detail)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range w.events {
		w.t.Log("event: ", e)
	}
}

// why returns the pod's Why report, for a test's failure message.
func (w *world) why(name string) string {
	if w.node == nil {
		return ""
	}
	r, _ := w.node.loop.Why(namespace, name)
	return r.Phase + ": " + r.Reason
}

// untilSettled waits until the pod's worker has nothing left to do.
func (w *world) untilSettled(name string) {
	w.t.Helper()
	w.until("pod "+name+" is settled", func() bool {
		r, ok := w.node.loop.Why(namespace, name)
		return ok && len(r.InFlight) == 0 && r.Reason == "all containers match the spec"
	})
}

// at returns the index in the runtime's log of the n-th entry, from 0, of this operation on this
// container; -1 if there is none.
func (w *world) at(op fake.Op, name string, n int) int {
	for i, e := range w.rt.Log() {
		if e.Op == op && e.Name == name {
			if n == 0 {
				return i
			}
			n--
		}
	}
	return -1
}

// instance returns the ID of the container's newest instance from the API's status.
func (w *world) instance(name, containerName string) string {
	return strings.TrimPrefix(container(w.api.pod(name), containerName).ContainerID, "containerd://")
}

// newPod returns a pod whose container "app" runs the script; see package cri/fake/program.
func newPod(name string, script ...string) *v1.Pod {
	grace := int64(5)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1.PodSpec{
			NodeName: "node", RestartPolicy: v1.RestartPolicyAlways, TerminationGracePeriodSeconds: &grace,
			Containers: []v1.Container{newContainer("app", script...)},
		},
	}
}

func newContainer(name string, script ...string) v1.Container {
	if len(script) == 0 {
		script = []string{"on-term 0", "wait"}
	}
	return v1.Container{
		Name: name, Image: "registry.example/bowline-test:1", ImagePullPolicy: v1.PullIfNotPresent,
		Command: []string{"/" + fake.TestImage}, Args: script,
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: v1.TerminationMessageReadFile,
	}
}

func with(p *v1.Pod, change func(*v1.Pod)) *v1.Pod {
	change(p)
	return p
}
