package clusterwide

import (
	"context"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// large is metadata of which little is read.
func large() metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: "shop", Name: "a", UID: "u", ResourceVersion: "7", Labels: map[string]string{"app": "a"},
		Annotations: map[string]string{"large": "text", "projectcalico.org/IPv4Address": "10.0.0.1/24"}, Generation: 3,
		ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}, OwnerReferences: []metav1.OwnerReference{{Name: "o"}}, Finalizers: []string{"f"},
	}
}

// TestLean: of the largest kinds, only what lifelines read is kept.
func TestLean(t *testing.T) {
	small := metav1.ObjectMeta{Namespace: "shop", Name: "a", UID: "u", ResourceVersion: "7"}
	labelled := small
	labelled.Labels = map[string]string{"app": "a"}
	slice := large()
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: "a", v1.IsHeadlessService: "", discoveryv1.LabelManagedBy: "x"}
	smallSlice, smallNode := small, small
	smallSlice.Labels = map[string]string{discoveryv1.LabelServiceName: "a", v1.IsHeadlessService: ""}
	smallNode.Annotations = map[string]string{"projectcalico.org/IPv4Address": "10.0.0.1/24"}
	conditions := discoveryv1.EndpointConditions{Ready: ptr.To(true)}
	for name, c := range map[string]struct{ full, want runtime.Object }{
		"an EndpointSlice": {
			&discoveryv1.EndpointSlice{ObjectMeta: slice, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(1))}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.2", "10.0.0.3"}, Conditions: conditions, NodeName: ptr.To("n"),
					TargetRef: &v1.ObjectReference{Name: "p"}, Zone: ptr.To("z"), Hostname: ptr.To("h")}, {}}},
			&discoveryv1.EndpointSlice{ObjectMeta: smallSlice, AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To(int32(1))}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.2"}, Conditions: conditions, NodeName: ptr.To("n")}, {}}},
		},
		"a pod": {
			&v1.Pod{ObjectMeta: large(), Spec: v1.PodSpec{NodeName: "n", HostNetwork: true, ServiceAccountName: "s",
				InitContainers: []v1.Container{{Name: "i", Image: "x"}},
				Containers: []v1.Container{{Name: "c", Image: "x", Env: []v1.EnvVar{{Name: "E"}},
					Ports: []v1.ContainerPort{{ContainerPort: 1}, {Name: "http", ContainerPort: 80, HostPort: 8080, HostIP: "::"}}}, {Name: "d"}}},
				Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.0.0.2", PodIPs: []v1.PodIP{{IP: "10.0.0.2"}}, HostIP: "10.0.0.1", Message: "m"}},
			&v1.Pod{ObjectMeta: labelled, Spec: v1.PodSpec{NodeName: "n", HostNetwork: true,
				Containers: []v1.Container{{Ports: []v1.ContainerPort{{Name: "http", ContainerPort: 80}}}}},
				Status: v1.PodStatus{Phase: v1.PodRunning, PodIP: "10.0.0.2", PodIPs: []v1.PodIP{{IP: "10.0.0.2"}}}},
		},
		"a Node": {
			&v1.Node{ObjectMeta: large(), Spec: v1.NodeSpec{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24"}, ProviderID: "p"},
				Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Address: "10.0.0.1"}}, Images: []v1.ContainerImage{{Names: []string{"i"}}}}},
			&v1.Node{ObjectMeta: smallNode, Spec: v1.NodeSpec{PodCIDR: "10.1.0.0/24", PodCIDRs: []string{"10.1.0.0/24"}},
				Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Address: "10.0.0.1"}}}},
		},
		"another": {
			&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"app": "a"}, Annotations: map[string]string{"large": "text"}}},
			&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"app": "a"}}},
		},
	} {
		got, err := lean(c.full)
		testutil.Must(t, err)
		if !equality.Semantic.DeepEqual(got, c.want) {
			t.Errorf("%s:\n%+v, want\n%+v", name, got, c.want)
		}
	}
	if got, err := lean("no object"); got != "no object" || err != nil {
		t.Errorf("what is no object: %v, %v", got, err)
	}
}

// TestSame: an update of what is not kept is none.
func TestSame(t *testing.T) {
	old := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1"}, Status: v1.PodStatus{Phase: v1.PodPending, Message: "m"}}
	for name, c := range map[string]struct {
		change func(*v1.Pod)
		want   bool
	}{
		"nothing":           {func(*v1.Pod) {}, true},
		"the version":       {func(p *v1.Pod) { p.ResourceVersion = "2" }, true},
		"what is not kept":  {func(p *v1.Pod) { p.Status.Message = "n" }, true},
		"a label":           {func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }, false},
		"the phase":         {func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }, false},
		"another pod by it": {func(p *v1.Pod) { p.UID = "u" }, false},
	} {
		changed := old.DeepCopy()
		c.change(changed)
		if got := same(leanPod(old), leanPod(changed)); got != c.want {
			t.Errorf("%s: %t, want %t", name, got, c.want)
		}
	}
	if old.ResourceVersion != "1" || same("no object", old) {
		t.Error("an object was changed, or is the same as what is none")
	}
}

// TestChanged: readers learn when the first list is complete, also an empty one, and of each change, as long
// as one of them with the same channel reads.
func TestChanged(t *testing.T) {
	s := newServer(t)
	all, changed := &Shared{}, make(chan struct{}, 1)
	waits := func(what string) {
		t.Helper()
		testutil.Receive(t, changed, time.Minute, what)
	}
	join := func(who string) (*Objects[*v1.Service], func() error) {
		r, client := all.ServiceObjects(changed), s.client(t, who)
		return r, testutil.Go(t.Context(), func(ctx context.Context) error { return r.Run(ctx, s.cluster(), client) })
	}
	first, leave := join("n1")
	waits("no signal of the first list")
	if !first.HasSynced() || len(first.All()) != 0 {
		t.Errorf("synced %t, with %v", first.HasSynced(), first.All())
	}
	second, leaveSecond := join("n2")
	waits("no signal of the second reader")
	testutil.Must(t, leave())
	s.add("services", "a")
	for len(second.All()) == 0 {
		waits("no signal of a change")
	}
	if got := second.All(); got[0].Name != "a" {
		t.Errorf("got %v", got)
	}
	testutil.Must(t, leaveSecond())
}
