package main

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host"
)

// changing is a machine that its test changes while it is read.
type changing struct {
	facts   atomic.Pointer[host.Facts]
	version atomic.Pointer[runtimeapi.VersionResponse]
	status  atomic.Pointer[runtimeapi.StatusResponse]
	away    atomic.Bool // the machine
	down    atomic.Bool // its runtime
	reads   atomic.Int32
}

func (c *changing) aspects(n *node) aspects {
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
		derive: n.derive,
	}
}

func handlerWith(users bool) *runtimeapi.StatusResponse {
	return &runtimeapi.StatusResponse{RuntimeHandlers: []*runtimeapi.RuntimeHandler{{Features: &runtimeapi.RuntimeHandlerFeatures{UserNamespaces: users}}}}
}

// What the machine is follows the machine: addresses, boot, memory, runtime, swap. What
// cannot be read stays as it was.
func TestRefresh(t *testing.T) {
	host1 := host.Facts{BootID: "boot-1", MemoryBytes: 4 << 30, CPUs: 2, Routed: true, RootDiskBytes: 1 << 40, Addresses: []net.IP{net.ParseIP("192.0.2.1"), net.ParseIP("10.88.0.1")}}
	all, err := config.Parse([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: /k\nhosts:\n- {name: box, endpoint: unix:///run/c.sock}\n"))
	if err != nil {
		t.Fatal(err)
	}
	n := &node{cfg: &all.Hosts[0], name: "n", host: &machine{}, cgroupDriver: "systemd"}
	c := &changing{}
	c.facts.Store(&host1)
	c.version.Store(&runtimeapi.VersionResponse{RuntimeName: "containerd", RuntimeVersion: "2.0.0"})
	c.status.Store(handlerWith(false))
	synctest.Test(t, func(t *testing.T) {
		n.seen = &refresher{aspects: c.aspects(n), period: nearRefresh, due: make(nudge, 1)}
		first, err := n.derive(&snapshot{facts: host1, version: c.version.Load(), status: c.status.Load()}, nil)
		if err != nil {
			t.Fatal(err)
		}
		n.seen.value.Store(first)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- n.seen.run(ctx) }()
		turn := func(change func(f *host.Facts)) {
			f := *c.facts.Load()
			change(&f)
			c.facts.Store(&f)
			time.Sleep(nearRefresh)
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
		n.seen.due.poke()
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

// TestAskKeepsWhatFollowed: where nothing follows from the answers, the machine is what it
// was, and the error has the reason.
func TestAskKeepsWhatFollowed(t *testing.T) {
	c := &changing{}
	c.facts.Store(&host.Facts{BootID: "boot-2"})
	c.version.Store(&runtimeapi.VersionResponse{RuntimeVersion: "2.1.0"})
	c.status.Store(handlerWith(true))
	a := c.aspects(&node{})
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
