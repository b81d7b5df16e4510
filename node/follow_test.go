package node

import (
	"net"
	"slices"
	"strings"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/provider"
)

// following records what a node does with its parts.
type following struct {
	calls []string
	info  provider.NodeInfo
}

func (f *following) call(what string)                { f.calls = append(f.calls, what) }
func (f *following) SetInfo(m provider.NodeInfo)     { f.call("info"); f.info = m }
func (f *following) Resume()                         { f.call("resume") }
func (f *following) RecordEvent(_, reason, _ string) { f.call(reason) }
func (f *following) Kick()                           { f.call("relist") }
func (f *following) MachineChanged()                 { f.call("wake") }
func (f *following) drop()                           { f.call("drop") }
func (f *following) retry()                          { f.call("retry") }

// followed is a node whose parts are recorded, and a snapshot of its host.
func followed(t *testing.T) (*Node, *following, func(change func(*snapshot)) *snapshot) {
	t.Helper()
	all, err := config.Parse([]byte("apiVersion: bowline.io/v1alpha1\nkind: BowlineConfiguration\nkubeconfig: /k\nhosts:\n- {name: box, endpoint: unix:///run/c.sock}\n"))
	testutil.Must(t, err)
	f := &following{}
	n := &Node{cfg: &all.Hosts[0], name: "n", host: &connect.Host{}, followers: followers{f, f, f, f},
		seen: &refresher{due: notify.New()}, apiBack: notify.New(), identity: cluster.IdentityRecorder{Due: notify.New()}}
	return n, f, func(change func(*snapshot)) *snapshot {
		read := &snapshot{driver: "cgroupfs", version: &runtimeapi.VersionResponse{RuntimeVersion: "2.0.0"}, status: handlerWith(false),
			facts: host.Facts{BootID: "boot-1", MemoryBytes: 4 << 30, CPUs: 2, RootDiskBytes: 1 << 40, Addresses: []net.IP{net.ParseIP("192.0.2.1")}}}
		change(read)
		s, err := n.derive(read, nil)
		testutil.Must(t, err)
		return s
	}
}

// Each part gets what it has to follow of a new snapshot, and no part gets more.
func TestFollow(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*snapshot)
		want   string
	}{
		"nothing":       {func(*snapshot) {}, "info"},
		"boot":          {func(s *snapshot) { s.facts.BootID = "boot-2" }, "info relist"},
		"address":       {func(s *snapshot) { s.facts.Addresses = []net.IP{net.ParseIP("192.0.2.2")} }, "info drop retry wake"},
		"runtime":       {func(s *snapshot) { s.version = &runtimeapi.VersionResponse{RuntimeVersion: "2.1.0"} }, "info"},
		"cgroup driver": {func(s *snapshot) { s.driver = "systemd" }, "info wake"},
	} {
		t.Run(name, func(t *testing.T) {
			n, f, made := followed(t)
			next := made(c.change)
			n.follow(made(func(*snapshot) {}), next)
			if got := strings.Join(f.calls, " "); got != c.want {
				t.Errorf("the parts got %q, want %q", got, c.want)
			}
			if i := f.info; i.RuntimeVersion != next.version.RuntimeVersion || i.Facts.BootID != next.facts.BootID || i.Addresses[0].Address != next.ips[0] {
				t.Errorf("the node reports %+v", i)
			}
		})
	}
}

// A lost claim closes the listener on the host. A claim that was taken again reads everything again.
func TestClaimIsLostAndTakenAgain(t *testing.T) {
	n, f, _ := followed(t)
	n.lost()
	n.reacquired()
	if want := []string{"drop", "LockLost", "LockReacquired", "relist", "resume", "retry"}; !slices.Equal(f.calls, want) {
		t.Errorf("the parts got %q, want %q", f.calls, want)
	}
	// A lock that is lost with a link all the time has few events, and each loss has its end.
	events := map[string]int{}
	for range 100 {
		f.calls = nil
		n.lost()
		n.reacquired()
		for _, call := range f.calls {
			events[call]++
		}
	}
	if events["LockLost"] != 4 || events["LockReacquired"] != 4 || events["relist"] != 100 {
		t.Errorf("%v", events)
	}
	for what, s := range map[string]notify.Signal{"the host's facts": n.seen.due, "the pods": n.apiBack, "the witnesses": n.identity.Due} {
		select {
		case <-s:
		default:
			t.Errorf("%s are not read again", what)
		}
	}
}
