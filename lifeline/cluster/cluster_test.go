package cluster

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/lifeline/flow"
	"github.com/bowline-k8s/bowline/lifeline/policy"
	"github.com/bowline-k8s/bowline/lifeline/route"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
)

func service(name, ip string) *v1.Service {
	return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: v1.ServiceSpec{
		ClusterIP: ip, ClusterIPs: []string{ip}, Ports: []v1.ServicePort{{Name: "web", Protocol: v1.ProtocolTCP, Port: 80}}}}
}

func endpoints(name, ip string) *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}, NodeName: ptr.To("n1")}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("web"), Protocol: ptr.To(v1.ProtocolTCP), Port: ptr.To(int32(8080))}},
	}
}

func pod(name, ip string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Labels: map[string]string{"app": name}},
		Spec: v1.PodSpec{NodeName: "edge"}, Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: ip}}
}

func denyEgress() *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "deny"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "jailed"}}, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}}}
}

func shop() []runtime.Object {
	return []runtime.Object{
		service("a", "10.96.0.1"), endpoints("a", "10.244.0.2"),
		&networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.0.0/12", "fd00::/108"}}},
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1.NodeSpec{PodCIDR: "10.244.0.0/24", PodCIDRs: []string{"10.244.0.0/24"}},
			Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeHostName, Address: "n1"}, {Type: v1.NodeInternalIP, Address: "192.168.0.1"}}}},
		&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, pod("free", "10.140.0.2"), pod("jailed", "10.140.0.3"),
	}
}

// start runs a Reader. stop ends it.
func start(t *testing.T, s *Shared, c Config) (r *Reader, stop func()) {
	t.Helper()
	r = s.Reader(c)
	end := testutil.Go(t.Context(), r.Run)
	return r, func() {
		t.Helper()
		testutil.Must(t, end())
	}
}

// decides is what the exit does with a flow to a Service by the Reader's Snapshot.
func decides(r *Reader, service string) string {
	s := r.Snapshot()
	if s == nil {
		return "nothing"
	}
	v := route.Decide(flow.Flow{Protocol: flow.TCP, Dst: netip.MustParseAddrPort(service)},
		route.State{Services: s.Services, Network: route.NewNetwork(route.Config{ServicePrefixes: s.ServicePrefixes})})
	if v.Action == route.Refuse {
		return v.Refusal.String()
	}
	return fmt.Sprint(v.Ends)
}

// permits reports whether the policies of the Reader's Snapshot permit a flow of a pod.
func permits(r *Reader, ip string) bool {
	s := r.Snapshot()
	if s == nil {
		return false
	}
	return s.Policies.Evaluate(policy.Flow{Protocol: flow.TCP, Port: 80, Source: s.Policies.At(netip.MustParseAddr(ip), "edge", true),
		Destination: policy.End{Address: netip.MustParseAddr("10.244.0.2")}}).Allowed
}

// TestSnapshot: a host learns of what there is, and of what changes.
func TestSnapshot(t *testing.T) {
	api := newAPIServer(t, shop()...)
	r, stop := start(t, NewShared(&clusterwide.Shared{}), api.config(t, "edge"))
	testutil.Eventually(t, "all is read", func() bool {
		s := r.Snapshot()
		return s != nil && s.Services != nil && s.Policies != nil && s.Nodes != nil && s.ServicePrefixes != nil
	})
	s := r.Snapshot()
	if got := fmt.Sprintf("%v %v", s.ServicePrefixes, s.Nodes); got != "[10.96.0.0/12 fd00::/108] [{n1 [10.244.0.0 10.244.0.1 192.168.0.1] [10.244.0.0/24]}]" {
		t.Errorf("got %s", got)
	}
	if got := decides(r, "10.96.0.1:80"); got != "[{10.244.0.2:8080 n1}]" {
		t.Errorf("a flow to the Service ends at %s", got)
	}
	for _, c := range []struct {
		change func()
		want   string
	}{
		{func() { api.put(t, endpoints("a", "10.244.0.3")) }, "[{10.244.0.3:8080 n1}]"},
		{func() { api.remove(t, endpoints("a", "10.244.0.3")) }, "Refused"},
		{func() { api.put(t, endpoints("a", "10.244.0.4")) }, "[{10.244.0.4:8080 n1}]"},
		{func() { api.remove(t, service("a", "10.96.0.1")) }, "Refused"},
	} {
		c.change()
		for decides(r, "10.96.0.1:80") != c.want {
			testutil.Receive(t, r.Changed(), time.Minute, "no signal that the Service ends at "+c.want)
		}
	}
	stop()
}

// TestPolicies: pods and namespaces are read with the first policy, and none of them if policies are ignored.
func TestPolicies(t *testing.T) {
	api := newAPIServer(t, shop()...)
	shared := NewShared(&clusterwide.Shared{})
	ignoring := api.config(t, "ignoring")
	ignoring.IgnorePolicies = true
	lax, stopLax := start(t, shared, ignoring)
	testutil.Eventually(t, "the Services are read", func() bool { return lax.Snapshot() != nil })
	if n := api.counted(api.reads, "networkpolicies"); n != 0 {
		t.Errorf("policies that are ignored were read %d times", n)
	}
	r, stop := start(t, shared, api.config(t, "edge"))
	testutil.Eventually(t, "without a policy, everything is permitted", func() bool { return permits(r, "10.140.0.3") })
	if n := api.counted(api.reads, "pods") + api.counted(api.reads, "namespaces"); n != 0 {
		t.Errorf("without policies, pods or namespaces were read %d times", n)
	}
	api.put(t, denyEgress())
	testutil.Eventually(t, "the policy isolates one pod", func() bool { return permits(r, "10.140.0.2") && !permits(r, "10.140.0.3") })
	api.put(t, pod("late", "10.140.0.4"))
	testutil.Eventually(t, "a new pod is known", func() bool { return permits(r, "10.140.0.4") })
	api.remove(t, denyEgress())
	testutil.Eventually(t, "without the policy, everything is permitted", func() bool { return permits(r, "10.140.0.3") })
	if s := lax.Snapshot(); s.Policies != nil || permits(lax, "10.140.0.2") {
		t.Errorf("a host that ignores policies has those of others")
	}
	api.mu.Lock()
	if !api.fields["pods status.phase!=Succeeded,status.phase!=Failed"] {
		t.Errorf("pods were read by %v", api.fields)
	}
	api.mu.Unlock()
	stop()
	stopLax()
}

// TestOneReadForAllHosts: hosts share what is read, and when one leaves, the others learn of changes as before.
func TestOneReadForAllHosts(t *testing.T) {
	api := newAPIServer(t, append(shop(), denyEgress())...)
	shared := NewShared(&clusterwide.Shared{})
	var readers []*Reader
	var stops []func()
	for i := range 3 {
		r, stop := start(t, shared, api.config(t, fmt.Sprint("edge-", i)))
		testutil.Eventually(t, "all is read", func() bool { return permits(r, "10.140.0.2") })
		readers, stops = append(readers, r), append(stops, stop)
	}
	for i, r := range readers {
		api.put(t, endpoints("a", fmt.Sprint("10.244.0.", 10+i)))
		testutil.Eventually(t, "the change is seen", func() bool { return decides(r, "10.96.0.1:80") == fmt.Sprintf("[{10.244.0.%d:8080 n1}]", 10+i) })
		stops[i]()
	}
	for resource := range kinds {
		if n := api.counted(api.reads, resource); n != 1 {
			t.Errorf("%s were read %d times", resource, n)
		}
		testutil.Eventually(t, "no watch is open", func() bool { return api.counted(api.open, resource) == 0 })
	}
	if len(shared.feeds) != 0 {
		t.Errorf("%d feeds are left", len(shared.feeds))
	}
	r, stop := start(t, shared, api.config(t, "edge-4"))
	testutil.Eventually(t, "a host that joins later reads again", func() bool { return permits(r, "10.140.0.2") })
	stop()
}

// TestRights: a host has only what its own client may read, whatever other hosts may, and refuses what it
// cannot evaluate.
func TestRights(t *testing.T) {
	for resource, c := range map[string]struct {
		snapshot, policies, nodes, prefixes bool
	}{
		"services": {}, "endpointslices": {},
		"networkpolicies": {true, false, true, true},
		"pods":            {true, false, true, true},
		"namespaces":      {true, false, true, true},
		"nodes":           {true, true, false, true},
		"servicecidrs":    {true, true, true, false},
		"none":            {true, true, true, true},
	} {
		t.Run(resource, func(t *testing.T) {
			api := newAPIServer(t, append(shop(), denyEgress())...)
			api.refused["poor "+resource] = true
			shared := NewShared(&clusterwide.Shared{})
			poor, stopPoor := start(t, shared, api.config(t, "poor"))
			rich, stopRich := start(t, shared, api.config(t, "rich"))
			complete := func(r *Reader) bool {
				s := r.Snapshot()
				return (s != nil) == c.snapshot && (s == nil || (s.Policies != nil) == c.policies && (s.Nodes != nil) == c.nodes && (s.ServicePrefixes != nil) == c.prefixes)
			}
			testutil.Eventually(t, "the rich host has all", func() bool {
				s := rich.Snapshot()
				return s != nil && s.Policies != nil && s.Nodes != nil && s.ServicePrefixes != nil
			})
			testutil.Eventually(t, "the poor host has the rest", func() bool { return complete(poor) })
			if permits(poor, "10.140.0.2") != c.policies {
				t.Errorf("the poor host permits a flow: %t", !c.policies)
			}
			stopRich()
			stopPoor()
		})
	}
}

// TestPause: many changes are few Snapshots.
func TestPause(t *testing.T) {
	api := newAPIServer(t, shop()...)
	r, stop := start(t, NewShared(&clusterwide.Shared{}), api.config(t, "edge"))
	testutil.Eventually(t, "the Services are read", func() bool { return decides(r, "10.96.0.1:80") != "nothing" })
	began, snapshots := time.Now(), 0
	last := r.member.Load().feed.current.Load()
	for i := range 200 {
		api.put(t, endpoints("a", fmt.Sprint("10.244.0.", i)))
	}
	for decides(r, "10.96.0.1:80") != "[{10.244.0.199:8080 n1}]" {
		testutil.Receive(t, r.Changed(), time.Minute, "no signal of the last change")
		if s := r.member.Load().feed.current.Load(); s != last {
			snapshots, last = snapshots+1, s
		}
	}
	if most := int(time.Since(began)/minPause) + 2; snapshots > most {
		t.Errorf("%d Snapshots in %s, want at most %d", snapshots, time.Since(began), most)
	}
	stop()
}
