package node

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/local"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/readiness"
)

const refreshPeriod = 10 * time.Second

// changing is a host that the test changes while it is read.
type changing struct {
	facts   atomic.Pointer[host.Facts]
	version atomic.Pointer[runtimeapi.VersionResponse]
	status  atomic.Pointer[runtimeapi.StatusResponse]
	systemd atomic.Bool // its cgroup driver
	ancient atomic.Bool // its runtime cannot report the driver
	away    atomic.Bool // the host is unreachable
	down    atomic.Bool // its runtime is down
	reads   atomic.Int32
}

func (c *changing) aspects(n *Node) aspects {
	return aspects{
		facts: func(context.Context) (host.Facts, error) {
			c.reads.Add(1)
			if c.away.Load() {
				return host.Facts{}, host.ErrUnreachable
			}
			return *c.facts.Load(), nil
		},
		version: func(context.Context) (*runtimeapi.VersionResponse, error) {
			if c.down.Load() {
				return nil, errors.New("the runtime is down")
			}
			return c.version.Load(), nil
		},
		status: func(context.Context) (*runtimeapi.StatusResponse, error) {
			if c.down.Load() {
				return nil, errors.New("the runtime is down")
			}
			return c.status.Load(), nil
		},
		driver: n.cgroupDriver(c),
		derive: n.derive,
	}
}

func (c *changing) RuntimeConfig(context.Context) (*runtimeapi.RuntimeConfigResponse, error) {
	driver := runtimeapi.CgroupDriver_CGROUPFS
	switch {
	case c.down.Load():
		return nil, &cri.Error{Kind: cri.KindTransport, Method: "RuntimeConfig", Err: errors.New("the runtime is down")}
	case c.ancient.Load():
		return nil, &cri.Error{Kind: cri.KindUnimplemented, Method: "RuntimeConfig", Err: errors.New("unknown method RuntimeConfig")}
	case c.systemd.Load():
		driver = runtimeapi.CgroupDriver_SYSTEMD
	}
	return &runtimeapi.RuntimeConfigResponse{Linux: &runtimeapi.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

func handlerWith(users bool) *runtimeapi.StatusResponse {
	return &runtimeapi.StatusResponse{RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: users}}}}
}

// The snapshot follows the host: addresses, boot, memory, runtime, swap. What cannot be read stays
// as it was.
func TestRefresh(t *testing.T) {
	host1 := host.Facts{BootID: "boot-1", MemoryBytes: 4 << 30, CPUs: 2, Routed: true, RootDiskBytes: 1 << 40, Addresses: []net.IP{net.ParseIP("192.0.2.1"), net.ParseIP("10.88.0.1")}}
	all, err := config.Parse([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: /k\nhosts:\n- {name: box, endpoint: unix:///run/c.sock}\n"))
	testutil.Must(t, err)
	n := &Node{cfg: &all.Hosts[0], name: "n", host: &connect.Host{}}
	c := &changing{}
	c.facts.Store(&host1)
	c.version.Store(&runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "2.0.0"})
	c.status.Store(handlerWith(false))
	synctest.Test(t, func(t *testing.T) {
		n.seen = &refresher{aspects: c.aspects(n), period: refreshPeriod, due: notify.New()}
		first, err := n.derive(&snapshot{facts: host1, version: c.version.Load(), status: c.status.Load()}, nil)
		testutil.Must(t, err)
		n.seen.value.Store(first)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- n.seen.run(ctx, func(_, _ *snapshot) {}) }()
		turn := func(change func(f *host.Facts)) {
			f := *c.facts.Load()
			change(&f)
			c.facts.Store(&f)
			time.Sleep(refreshPeriod)
			synctest.Wait()
		}
		expect := func(when, address, boot, runtime string, users bool) {
			t.Helper()
			m := n.reported(n.seen.load(), "")
			if got := n.seen.load().spec.HostIPs; !slices.Equal(got, []string{address}) || m.Addresses[0].Address != address {
				t.Errorf("%s: the machine's address is %v, the node's %v, want %s", when, got, m.Addresses, address)
			}
			if m.Facts.BootID != boot || m.RuntimeVersion != runtime || n.userNamespaces("") != users {
				t.Errorf("%s: boot %s, runtime %s, user namespaces %v; want %s, %s, %v", when, m.Facts.BootID, m.RuntimeVersion, n.userNamespaces(""), boot, runtime, users)
			}
		}
		turn(func(f *host.Facts) { f.SwapControl = true })
		expect("at the start", "192.0.2.1", "boot-1", "2.0.0", false)
		if !n.seen.load().spec.SwapControl {
			t.Error("the kernel counts swap since kubepods is there, and containers are not denied it")
		}
		turn(func(f *host.Facts) { f.Addresses = []net.IP{net.ParseIP("198.51.100.1"), net.ParseIP("192.0.2.1")} })
		expect("beside another address", "192.0.2.1", "boot-1", "2.0.0", false)
		turn(func(f *host.Facts) { f.Addresses, f.Routed = []net.IP{net.ParseIP("10.88.0.1")}, false })
		expect("without a network", "192.0.2.1", "boot-1", "2.0.0", false)
		turn(func(f *host.Facts) { f.Addresses = nil })
		expect("without an address", "192.0.2.1", "boot-1", "2.0.0", false)
		turn(func(f *host.Facts) {
			f.Addresses, f.Routed = []net.IP{net.ParseIP("192.0.2.99"), net.ParseIP("10.88.0.1")}, true
		})
		expect("with another lease", "192.0.2.99", "boot-1", "2.0.0", false)

		c.down.Store(true)
		c.version.Store(&runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "2.1.0"})
		c.status.Store(handlerWith(true))
		turn(func(f *host.Facts) { f.BootID, f.MemoryBytes = "boot-2", 8<<30 })
		expect("rebooted, its runtime not up yet", "192.0.2.99", "boot-2", "2.0.0", false)
		if got := n.seen.load().share.MemoryBytes; got != 8<<30 {
			t.Errorf("pods may use %d bytes of a machine with 8 GiB", got)
		}
		c.down.Store(false)
		c.away.Store(true)
		turn(func(f *host.Facts) { f.BootID = "boot-3" })
		expect("out of reach, its runtime not", "192.0.2.99", "boot-2", "2.1.0", true)
		c.away.Store(false)
		n.seen.due.Send()
		synctest.Wait()
		expect("within reach again", "192.0.2.99", "boot-3", "2.1.0", true)

		before := c.reads.Load()
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := c.reads.Load() - before; got != 6 {
			t.Errorf("%d reads in a minute, want one in each 10 s", got)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestDriverFollowsTheRuntime: a boot into the other cgroup version brings a runtime with the other
// driver. The pods, their parent cgroups and the limit of all pods follow. A runtime that does not
// answer keeps its last driver.
func TestDriverFollowsTheRuntime(t *testing.T) {
	for configured, follows := range map[string]bool{"": true, "cgroupfs": false} {
		t.Run("configured: "+configured, func(t *testing.T) {
			all, err := config.Parse([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: /k\nhosts:\n- {name: box, endpoint: unix:///run/c.sock}\n"))
			testutil.Must(t, err)
			n := &Node{cfg: &all.Hosts[0], name: "n", host: &connect.Host{}, ready: readiness.New(nil, nil, "", 0)}
			n.cfg.CgroupDriver = configured
			c := &changing{}
			c.facts.Store(&host.Facts{MemoryBytes: 4 << 30, CPUs: 2, RootDiskBytes: 1 << 40, Addresses: []net.IP{net.ParseIP("192.0.2.1")}})
			c.version.Store(&runtimeapi.VersionResponse{})
			c.status.Store(handlerWith(false))
			synctest.Test(t, func(t *testing.T) {
				n.seen = &refresher{aspects: c.aspects(n), period: time.Minute, due: notify.New()}
				first, err := n.derive(&snapshot{facts: *c.facts.Load(), driver: "cgroupfs"}, nil)
				testutil.Must(t, err)
				n.seen.value.Store(first)
				ctx, cancel := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- n.seen.run(ctx, func(_, _ *snapshot) {}) }()
				expect := func(when, driver string) {
					t.Helper()
					synctest.Wait()
					if !follows {
						driver = configured
					}
					if got := n.seen.load().spec.CgroupDriver; got != driver {
						t.Errorf("%s: pods are made for %q, want %q", when, got, driver)
					}
					if got := n.podsCgroup(); got != spec.PodsCgroup(driver) {
						t.Errorf("%s: the cgroup of all pods is %q with %s", when, got, driver)
					}
				}
				expect("at the start", "cgroupfs")
				c.systemd.Store(true)
				time.Sleep(time.Minute)
				expect("restarted", "systemd")
				c.down.Store(true)
				c.systemd.Store(false)
				n.runtimeChanged(false, "KubeletNotReady", "down")
				time.Sleep(time.Minute)
				expect("down", "systemd")
				c.down.Store(false)
				n.runtimeChanged(true, "KubeletReady", "")
				expect("ready again, long before the next look", "cgroupfs")
				c.systemd.Store(true)
				n.seen.due.Send()
				expect("restarted again", "systemd")
				c.ancient.Store(true)
				n.seen.due.Send()
				expect("replaced by one that is too old to say", "cgroupfs")
				cancel()
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestStartKnowsTheDriver: the node does not start with a guessed cgroup driver, such as when the
// runtime stops answering during startup. It does not ask for a configured one.
func TestStartKnowsTheDriver(t *testing.T) {
	rt := fake.Run(t, fake.Config{})
	client, err := cri.Connect(t.Context(), cri.Config{Dial: rt.Dial})
	testutil.Must(t, err)
	defer client.Close()
	here, err := local.New(local.Config{Name: "here"})
	testutil.Must(t, err)
	all, err := config.Parse([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: /k\nhosts:\n- {name: box, endpoint: unix:///run/c.sock, resolvConf: \"\"}\n"))
	testutil.Must(t, err)
	n := &Node{cfg: &all.Hosts[0], name: "n", host: &connect.Host{Host: here}, runtime: client}
	facts := host.Facts{MemoryBytes: 4 << 30, CPUs: 2, RootDiskBytes: 1 << 40, Addresses: []net.IP{net.ParseIP("192.0.2.1")}}
	seen, err := n.look(t.Context(), facts)
	if err != nil || seen.load().spec.CgroupDriver != "cgroupfs" {
		t.Fatalf("%+v, %v", seen, err)
	}
	rt.Inject("RuntimeConfig", fake.Fault{Before: status.Error(codes.Unavailable, "going down"), Times: -1})
	if _, err := n.look(t.Context(), facts); !cri.IsTransport(err) {
		t.Errorf("a runtime that does not say its driver: %v", err)
	}
	n.cfg.CgroupDriver = "systemd"
	if seen, err = n.look(t.Context(), facts); err != nil || seen.load().spec.CgroupDriver != "systemd" {
		t.Errorf("with a configured driver: %+v, %v", seen, err)
	}
}

// TestAskKeepsWhatFollowed: if derive fails, ask returns the last snapshot and the error.
func TestAskKeepsWhatFollowed(t *testing.T) {
	c := &changing{}
	c.facts.Store(&host.Facts{BootID: "boot-2"})
	c.version.Store(&runtimeapi.VersionResponse{RuntimeVersion: "2.1.0"})
	c.status.Store(handlerWith(true))
	a := c.aspects(&Node{cfg: &config.Host{}})
	why := errors.New("more is reserved than the machine has")
	a.derive = func(read, _ *snapshot) (*snapshot, error) {
		if read.facts.BootID != "boot-2" {
			t.Errorf("derived from %q", read.facts.BootID)
		}
		return nil, why
	}
	last := &snapshot{facts: host.Facts{BootID: "boot-1"}}
	next, err := a.ask(t.Context(), last)
	if next != last || !errors.Is(err, why) {
		t.Errorf("the snapshot is %p, not %p: %v", next, last, err)
	}
}
