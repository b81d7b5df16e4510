package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/ownership"
	"github.com/bowline-k8s/bowline/provider/api"
)

// machine is a local host whose facts and resolv.conf the test changes. Its files and locks are
// below one directory.
type machine struct {
	host.Host
	dir    string
	facts  atomic.Pointer[host.Facts]
	resolv atomic.Pointer[string]

	mu       sync.Mutex
	shared   []string // the arguments of MakeShared
	unshared error    // what MakeShared returns
	locked   int      // locks that are held
}

func (m *machine) Facts(context.Context) (host.Facts, error) { return *m.facts.Load(), nil }

func (m *machine) ReadFile(ctx context.Context, path string, most int64) ([]byte, error) {
	if path == "/etc/resolv.conf" {
		return []byte(*m.resolv.Load()), nil
	}
	return m.Host.ReadFile(ctx, path, most)
}

func (m *machine) MakeShared(_ context.Context, dir string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.shared = append(m.shared, dir)
	return m.unshared
}

func (m *machine) Lock(ctx context.Context, path string, holder []byte) (host.Lock, error) {
	l, err := m.Host.Lock(ctx, filepath.Join(m.dir, "locks", filepath.Base(path)), holder)
	if err != nil {
		return nil, err
	}
	m.count(1)
	return countedLock{l, m}, nil
}

func (m *machine) count(n int) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.locked += n
	return m.locked
}

type countedLock struct {
	host.Lock
	of *machine
}

func (l countedLock) Close() error {
	l.of.count(-1)
	return l.Lock.Close()
}

// wired returns a node that has claimed a fake host and is built, and that runs nothing.
func wired(t *testing.T) (*Node, *machine) {
	t.Helper()
	here, err := local.New(local.Config{Name: "box"})
	testutil.Must(t, err)
	m := &machine{Host: here, dir: t.TempDir()}
	m.facts.Store(&host.Facts{BootID: "boot-1", Hostname: "box", MemoryBytes: 4 << 30, CPUs: 2, CgroupVersion: 2, Routed: true, RootDiskBytes: 1 << 40,
		Addresses: []net.IP{net.ParseIP("192.0.2.1")}})
	resolv := "nameserver 192.0.2.53\n"
	m.resolv.Store(&resolv)
	rt := fake.Run(t, fake.Config{})
	client, err := cri.Connect(t.Context(), cri.Config{Dial: rt.Dial})
	testutil.Must(t, err)
	t.Cleanup(func() { _ = client.Close() })
	all, err := config.Parse(fmt.Appendf(nil, "apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: /k\nhosts:\n"+
		"- {name: box, endpoint: unix:///run/c.sock, rootDirectory: %s/root, resolvConf: /etc/resolv.conf}\n", m.dir))
	testutil.Must(t, err)
	n := newNode(&all.Hosts[0])
	n.cfg.Server.Address, n.cfg.Server.Port = "127.0.0.1", 0
	n.cfg.NodeStatusUpdateFrequency.Duration = 10 * time.Millisecond
	ready := make(chan struct{})
	close(ready)
	n.name, n.host, n.runtime, n.metrics = "box", &connect.Host{Host: m}, client, NewMetrics()
	n.strangers = api.NewStrangers()
	n.cluster = &cluster.Connection{UID: "cluster-1", Client: kubefake.NewSimpleClientset(), Rest: &rest.Config{Host: "https://127.0.0.1:1"}, Ready: ready}
	n.held = ownership.NewHolder(nil, func(ctx context.Context) (ownership.Claim, error) { return n.claim(ctx, client) })
	testutil.Must(t, n.held.Acquire(t.Context()))
	t.Cleanup(func() { ownership.Release(context.Background(), n.held.Claim) })
	n.stamp, n.clock = n.held.Claim.Stamp(), newClock(n.host)
	t.Cleanup(n.closeListener)
	testutil.Must(t, n.build(t.Context(), *m.facts.Load()))
	return n, m
}

// only returns a start that runs the parts of these names until the test ends.
func only(t *testing.T, names ...string) start {
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	return func(name string, run func(context.Context) error) {
		if slices.Contains(names, name) {
			all.Go(func() { _ = run(ctx) })
		}
	}
}

// TestTheNodeFollowsItsHost: what changes while the node runs reaches the Node object, the specs of
// pods and their resolv.conf, without a new start. A reboot has its event.
func TestTheNodeFollowsItsHost(t *testing.T) {
	n, m := wired(t)
	c := &changing{}
	c.version.Store(&runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "2.0.0"})
	c.status.Store(handlerWith(false))
	asked := c.aspects(n)
	n.seen.version, n.seen.status = asked.version, asked.status
	var rebooted atomic.Int32
	watch := n.events.StartEventWatcher(func(e *v1.Event) {
		if e.Reason == "Rebooted" && strings.Contains(e.Message, "boot-2") {
			rebooted.Add(1)
		}
	})
	t.Cleanup(watch.Stop)
	part := only(t, "host facts", "node")
	n.startCluster(part)
	n.startHost(part)
	object := func() *v1.Node {
		o, err := n.cluster.Client.CoreV1().Nodes().Get(t.Context(), "box", metav1.GetOptions{})
		if err != nil {
			return &v1.Node{}
		}
		return o
	}
	resolvOf := func() string {
		read := n.loopConfig().HostResolv
		if read == nil {
			return ""
		}
		data, err := read(t.Context())
		testutil.Must(t, err)
		return string(data)
	}
	shows := func(what, address, boot, runtime, resolv string, memory int64, users bool) {
		t.Helper()
		testutil.Eventually(t, what, func() bool {
			o, machine := object(), n.loopConfig().Machine()
			return len(o.Status.Addresses) > 0 && o.Status.Addresses[0].Address == address && o.Status.NodeInfo.BootID == boot &&
				o.Status.NodeInfo.ContainerRuntimeVersion == "containerd://"+runtime && o.Status.Capacity.Memory().Value() == memory &&
				len(o.Status.RuntimeHandlers) == 1 && *o.Status.RuntimeHandlers[0].Features.UserNamespaces == users &&
				slices.Equal(machine.HostIPs, []string{address}) && machine.MemoryBytes == memory && string(machine.HostResolv) == resolv
		})
		if got := resolvOf(); got != resolv {
			t.Errorf("when %s, a new sandbox gets %q", what, got)
		}
	}
	shows("the Node is as the host", "192.0.2.1", "boot-1", "2.0.0", *m.resolv.Load(), 4<<30, false)
	if rebooted.Load() != 0 {
		t.Error("the first report is an event of a reboot")
	}

	next := *m.facts.Load()
	next.BootID, next.MemoryBytes, next.Addresses = "boot-2", 8<<30, []net.IP{net.ParseIP("192.0.2.2")}
	resolv := "nameserver 198.51.100.53\n"
	m.facts.Store(&next)
	m.resolv.Store(&resolv)
	c.version.Store(&runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "2.1.0"})
	c.status.Store(handlerWith(true))
	shows("the Node follows", "192.0.2.2", "boot-2", "2.1.0", resolv, 8<<30, true)
	testutil.Eventually(t, "the reboot has an event", func() bool { return rebooted.Load() == 1 })
}

// TestEachClaimMakesTheRootShared: mounts of a container reach the host only below a shared mount,
// and a reboot undoes it. A host that refuses is not kept.
func TestEachClaimMakesTheRootShared(t *testing.T) {
	n, m := wired(t)
	root := n.cfg.RootDirectory
	if !slices.Equal(m.shared, []string{root}) {
		t.Errorf("made shared: %q, want the root directory once", m.shared)
	}
	testutil.Must(t, n.held.Claim.Release(t.Context()))
	testutil.Must(t, n.held.Acquire(t.Context())) // as after a reboot
	if !slices.Equal(m.shared, []string{root, root}) {
		t.Errorf("claimed again, made shared: %q", m.shared)
	}
	testutil.Must(t, n.held.Claim.Release(t.Context()))
	m.unshared = errors.New("the mount is busy")
	if _, err := n.claim(t.Context(), n.runtime); !errors.Is(err, m.unshared) {
		t.Errorf("a host whose root directory cannot be shared is claimed: %v", err)
	}
	if left := m.count(0); left != 0 {
		t.Errorf("%d locks of a refused claim are still held", left)
	}
	m.unshared = nil
	testutil.Must(t, n.held.Acquire(t.Context()))
}
