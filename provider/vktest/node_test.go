package vktest

import (
	"context"
	"errors"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/provider"
)

// pinger is a NodeProvider as virtual-kubelet expects it.
type pinger struct {
	mu     sync.Mutex
	err    error
	notify func(*v1.Node)
}

func (p *pinger) Ping(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *pinger) NotifyNodeStatus(_ context.Context, f func(*v1.Node)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.notify = f
}

func (p *pinger) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = err
}

func (w *world) object() *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: w.node, Labels: map[string]string{"disk": "ssd"}}, Status: v1.NodeStatus{
		Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "KubeletReady"}}}}
}

// aloneNode runs virtual-kubelet's unmodified NodeController.
func (w *world) aloneNode(p vknode.NodeProvider, n *v1.Node, opts ...vknode.NodeControllerOpt) *vknode.NodeController {
	w.t.Helper()
	opts = append([]vknode.NodeControllerOpt{vknode.WithNodePingInterval(200 * time.Millisecond), vknode.WithNodeStatusUpdateInterval(300 * time.Millisecond)}, opts...)
	c, err := vknode.NewNodeController(p, n, w.client.CoreV1().Nodes(), opts...)
	testutil.Must(w.t, err)
	go c.Run(w.ctx)
	return c
}

func (w *world) ready(c *vknode.NodeController) {
	w.t.Helper()
	select {
	case <-c.Ready():
	case <-c.Done():
		w.t.Fatalf("the controller ended: %v", c.Err())
	case <-time.After(30 * time.Second):
		w.t.Fatal("the controller is not ready")
	}
}

func (w *world) condition(kind v1.NodeConditionType) v1.NodeCondition {
	for _, c := range w.getNode().Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.NodeCondition{}
}

func (w *world) renewed() time.Time {
	l, err := w.admin.CoordinationV1().Leases("kube-node-lease").Get(w.ctx, w.node, metav1.GetOptions{})
	if err != nil || l.Spec.RenewTime == nil {
		return time.Time{}
	}
	return l.Spec.RenewTime.Time
}

// TestUnhealthyNodeSaysWhy: an error of Ping stops status and lease without a log; at the start,
// the node is never registered.
func TestUnhealthyNodeSaysWhy(t *testing.T) {
	t.Parallel()
	away := errors.New("container runtime is down")
	t.Run("alone, at the start", func(t *testing.T) {
		w := newWorld(t)
		p := &pinger{err: away}
		c := w.aloneNode(p, w.object())
		testutil.Receive(t, c.Done(), 20*time.Second, "it neither registered nor ended")
		p.fail(nil)
		w.stays(time.Second, "never registered", func() bool { return w.getNode().Name == "" })
	})
	t.Run("alone, later", func(t *testing.T) {
		w := newWorld(t)
		p := &pinger{}
		leases := w.client.CoordinationV1().Leases("kube-node-lease")
		w.ready(w.aloneNode(p, w.object(), vknode.WithNodeEnableLeaseV1WithRenewInterval(leases, 4, 300*time.Millisecond)))
		w.until("a lease", func() bool { return !w.renewed().IsZero() })
		p.fail(away)
		var last time.Time
		w.until("the lease stops", func() bool {
			before := last
			last = w.renewed()
			return last.Equal(before) && time.Since(last) > 2*time.Second
		})
		if c := w.condition(v1.NodeReady); c.Status == v1.ConditionFalse || strings.Contains(c.Message, "down") {
			t.Errorf("it says why (%+v); virtual-kubelet has fixed this", c)
		}
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o := w.behind(func(c *provider.Config) { c.LeaseDuration = 4 * time.Second })
		o.node.SetReady(true, "", "")
		w.until("Ready", func() bool { return w.condition(v1.NodeReady).Status == v1.ConditionTrue })
		o.node.SetReady(false, "", away.Error())
		w.until("the cause", func() bool {
			c := w.condition(v1.NodeReady)
			return c.Status == v1.ConditionFalse && c.Reason == "KubeletNotReady" && c.Message == away.Error()
		})
		at := time.Now()
		w.until("the lease continues", func() bool { return w.renewed().After(at) })
		o.node.SetReady(true, "", "")
		w.until("Ready again", func() bool { return w.condition(v1.NodeReady).Status == v1.ConditionTrue })
	})
}

// TestNodeLabelsStayAndNothingBlocks: the callback replaces labels and annotations, and blocks while
// the controller is busy.
func TestNodeLabelsStayAndNothingBlocks(t *testing.T) {
	t.Parallel()
	stall := func(release chan struct{}) func(*http.Request) *http.Response {
		return func(r *http.Request) *http.Response {
			if r.Method == http.MethodPatch && strings.Contains(r.URL.Path, "/nodes/") {
				<-release
			}
			return nil
		}
	}
	t.Run("alone", func(t *testing.T) {
		w := newWorld(t)
		p := &pinger{}
		w.ready(w.aloneNode(p, w.object(), vknode.WithNodeStatusUpdateInterval(time.Hour)))
		p.notify(w.object()) // now the label is in its last-applied annotation
		w.until("reported", func() bool { return w.getNode().Annotations["virtual-kubelet.io/last-applied-object-meta"] != "" })
		bare := w.object()
		bare.Labels = nil
		p.notify(bare)
		w.until("the label gone", func() bool { _, there := w.getNode().Labels["disk"]; return !there })

		release := make(chan struct{})
		defer close(release)
		w.wire.breakWith(stall(release))
		returned := make(chan struct{})
		go func() {
			for range 3 {
				p.notify(w.object())
			}
			close(returned)
		}()
		select {
		case <-returned:
			t.Error("three reports went in at once; virtual-kubelet has fixed this")
		case <-time.After(2 * time.Second):
		}
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o := w.behind(func(c *provider.Config) { c.Registration.Labels = map[string]string{"disk": "ssd"} })
		o.node.SetReady(true, "", "")
		w.until("Ready", func() bool { return w.condition(v1.NodeReady).Status == v1.ConditionTrue })
		if l := w.getNode().Labels; l["disk"] != "ssd" || l["kubernetes.io/hostname"] != w.node {
			t.Errorf("labels after a report: %v", l)
		}
		release := make(chan struct{})
		w.wire.breakWith(stall(release))
		returned := make(chan struct{})
		go func() {
			for i := range 10 {
				o.node.SetReady(i%2 == 1, "", "")
			}
			close(returned)
		}()
		testutil.Receive(t, returned, 10*time.Second, "SetReady blocks on the API server")
		o.node.SetReady(false, "", "the last word")
		w.wire.breakWith(nil)
		close(release)
		w.until("the newest wins", func() bool { return w.condition(v1.NodeReady).Message == "the last word" })
	})
}

// TestHeartbeatsAreSmallAndRare: each report repeats the whole status in annotations, once a
// minute.
func TestHeartbeatsAreSmallAndRare(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		w := newWorld(t)
		w.ready(w.aloneNode(&pinger{}, w.object()))
		w.until("the whole status in an annotation", func() bool {
			return strings.Contains(w.getNode().Annotations["virtual-kubelet.io/last-applied-node-status"], "KubeletReady")
		})
		if vknode.DefaultStatusUpdateInterval != time.Minute {
			t.Errorf("it reports each %s, no longer each minute", vknode.DefaultStatusUpdateInterval)
		}
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o := w.behind()
		o.node.SetReady(true, "", "")
		w.until("Ready", func() bool { return w.condition(v1.NodeReady).Status == v1.ConditionTrue })
		for k := range w.getNode().Annotations {
			if strings.HasPrefix(k, "virtual-kubelet.io/") {
				t.Errorf("annotation %s", k)
			}
		}
		patches := w.wire.count("PATCH", "/nodes/"+w.node)
		o.node.SetReady(true, "", "") // no change
		w.stays(3*time.Second, "no report without a change", func() bool { return w.wire.count("PATCH", "/nodes/"+w.node) == patches })
		version := w.getNode().ResourceVersion
		o.node.SetReady(false, "", "changed")
		w.until("a report on a change", func() bool { return w.getNode().ResourceVersion != version })
	})
}

// TestTaintsAreRegistered: later reports ignore taints and providerID, and NodeRestriction would
// forbid them, so they must be right at registration.
func TestTaintsAreRegistered(t *testing.T) {
	t.Parallel()
	taint := v1.Taint{Key: "shop.example/gpu", Value: "yes", Effect: v1.TaintEffectNoSchedule}
	has := func(n *v1.Node) bool {
		return slices.ContainsFunc(n.Spec.Taints, func(x v1.Taint) bool { return x.Key == taint.Key })
	}
	t.Run("alone", func(t *testing.T) {
		w := newWorld(t)
		p := &pinger{}
		w.ready(w.aloneNode(p, w.object()))
		late := w.object()
		late.Spec.Taints, late.Spec.ProviderID = []v1.Taint{taint}, "shop://1"
		late.Status.Conditions[0].Message = "with a taint"
		p.notify(late)
		w.until("reported", func() bool { return w.condition(v1.NodeReady).Message == "with a taint" })
		if n := w.getNode(); has(n) || n.Spec.ProviderID != "" {
			t.Error("a later taint or providerID was taken; virtual-kubelet has fixed this")
		}
		_, err := w.asNode().CoreV1().Nodes().Patch(w.ctx, w.node, types.StrategicMergePatchType, []byte(`{"spec":{"taints":[{"key":"shop.example/gpu","effect":"NoSchedule"}]}}`), metav1.PatchOptions{})
		if !apierrors.IsForbidden(err) {
			t.Errorf("a node tainting itself: %v, want forbidden", err)
		}
	})
	t.Run("behind, as the node", func(t *testing.T) {
		w := newWorld(t)
		w.behind(func(c *provider.Config) {
			c.Client, c.LeaseClient = w.asNode(), w.asNode()
			c.Registration.Taints, c.Registration.ProviderID = []v1.Taint{taint}, "shop://1"
		})
		if n := w.getNode(); !has(n) || n.Spec.ProviderID != "shop://1" {
			t.Errorf("taints %v, providerID %q", n.Spec.Taints, n.Spec.ProviderID)
		}
		w.until("the lease, under NodeRestriction", func() bool { return !w.renewed().IsZero() })
	})
}

// TestTwoAddressesOfOneType: addresses merge by type, which corrupts two InternalIPs.
func TestTwoAddressesOfOneType(t *testing.T) {
	t.Parallel()
	addresses := func(ips ...string) []v1.NodeAddress {
		var a []v1.NodeAddress
		for _, ip := range ips {
			a = append(a, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
		}
		return append(a, v1.NodeAddress{Type: v1.NodeHostName, Address: "m"})
	}
	before, after := addresses("10.0.0.1", "fd00::1"), addresses("10.0.0.2", "fd00::2")
	t.Run("alone", func(t *testing.T) {
		w := newWorld(t)
		p := &pinger{}
		n := w.object()
		n.Status.Addresses = before
		w.ready(w.aloneNode(p, n))
		n = w.object()
		n.Status.Addresses = after
		n.Status.Conditions[0].Message = "moved"
		p.notify(n)
		w.stays(3*time.Second, "wrong addresses", func() bool { return !slices.Equal(w.getNode().Status.Addresses, after) })
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		at := func(a []v1.NodeAddress) func(*provider.Config) {
			return func(c *provider.Config) { c.Info.Addresses = a }
		}
		w.behind(at(before))
		if got := w.getNode().Status.Addresses; !slices.Equal(got, before) {
			t.Errorf("registered with %v", got)
		}
		// Another process takes the object over.
		ctx, cancel := context.WithCancel(w.ctx)
		defer cancel()
		o := w.build(at(after))
		done := make(chan error, 1)
		go func() { done <- o.node.Run(ctx) }()
		w.until("the new addresses, exactly", func() bool { return slices.Equal(w.getNode().Status.Addresses, after) })
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Run("behind, one address", func(t *testing.T) {
		w := newWorld(t)
		o := w.behind()
		f := machine()
		f.Addresses = []net.IP{net.IPv4(10, 7, 7, 7)}
		o.node.SetInfo(provider.NodeInfo{Facts: f, RuntimeName: "containerd", RuntimeVersion: "2.1.4"})
		w.until("the machine's new address", func() bool {
			a := w.getNode().Status.Addresses
			return len(a) == 2 && a[0].Address == "10.7.7.7"
		})
	})
}

// TestLeaseTellsNoLivesApart: the lease's holder is the node's name, so two processes of one node
// renew the same lease without noticing. A lease cannot say which process manages the machine. The
// owner file on the machine does; see syncloop/owner.
func TestLeaseTellsNoLivesApart(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	leases := w.client.CoordinationV1().Leases("kube-node-lease")
	first := w.aloneNode(&pinger{}, w.object(), vknode.WithNodeEnableLeaseV1WithRenewInterval(leases, 4, 300*time.Millisecond))
	w.ready(first)
	w.until("a lease", func() bool { return !w.renewed().IsZero() })
	second := w.aloneNode(&pinger{}, w.object(), vknode.WithNodeEnableLeaseV1WithRenewInterval(leases, 4, 300*time.Millisecond))
	w.ready(second)
	l, err := leases.Get(w.ctx, w.node, metav1.GetOptions{})
	testutil.Must(t, err)
	if *l.Spec.HolderIdentity != w.node {
		t.Errorf("the holder is %q: lives can be told apart now", *l.Spec.HolderIdentity)
	}
	w.stays(2*time.Second, "both run on", func() bool {
		select {
		case <-first.Done():
			return false
		case <-second.Done():
			return false
		default:
			return true
		}
	})
}

// TestLabelsUnderNodeRestriction: a node may not set virtual-kubelet's default label; it may set
// the kubelet's.
func TestLabelsUnderNodeRestriction(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		w := newWorld(t)
		n := w.object()
		n.Labels["kubernetes.io/role"] = "agent"
		c, err := vknode.NewNodeController(&pinger{}, n, w.asNode().CoreV1().Nodes())
		testutil.Must(t, err)
		err = c.Run(w.ctx)
		if err == nil || !strings.Contains(err.Error(), "is not allowed to") {
			t.Errorf("registration with kubernetes.io/role: %v, want it refused", err)
		}
	})
	t.Run("behind, as the node", func(t *testing.T) {
		w := newWorld(t)
		o := w.behind(func(c *provider.Config) { c.Client, c.LeaseClient = w.asNode(), w.asNode() })
		o.node.SetReady(true, "", "")
		w.until("Ready", func() bool { return w.condition(v1.NodeReady).Status == v1.ConditionTrue })
		n := w.getNode()
		for _, l := range []string{"kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch", "beta.kubernetes.io/os", "beta.kubernetes.io/arch"} {
			if n.Labels[l] == "" {
				t.Errorf("label %s is missing", l)
			}
		}
		server, err := w.admin.Discovery().ServerVersion()
		testutil.Must(t, err)
		if n.Status.NodeInfo.KubeletVersion != provider.ReportedVersion(server.GitVersion) {
			t.Errorf("kubelet version %q against a server of %q", n.Status.NodeInfo.KubeletVersion, server.GitVersion)
		}
	})
}

// TestDeletedNodeComesBack: a node that someone deleted stays deleted, and only the log says so.
func TestDeletedNodeComesBack(t *testing.T) {
	t.Parallel()
	t.Run("alone", func(t *testing.T) {
		w := newWorld(t)
		w.ready(w.aloneNode(&pinger{}, w.object()))
		testutil.Must(t, w.admin.CoreV1().Nodes().Delete(w.ctx, w.node, metav1.DeleteOptions{}))
		w.stays(3*time.Second, "it stays away", func() bool { return w.getNode().Name == "" })
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		o := w.behind(func(c *provider.Config) { c.LeaseDuration = 4 * time.Second })
		o.node.SetReady(true, "", "")
		w.until("Ready", func() bool { return w.condition(v1.NodeReady).Status == v1.ConditionTrue })
		old := w.getNode().UID
		testutil.Must(t, w.admin.CoreV1().Nodes().Delete(w.ctx, w.node, metav1.DeleteOptions{}))
		testutil.Within(w.t, 5*time.Second, "it comes back with its status", func() bool {
			n := w.getNode()
			return n.UID != "" && n.UID != old && w.condition(v1.NodeReady).Status == v1.ConditionTrue
		})
		at := time.Now()
		w.until("its lease continues", func() bool { return w.renewed().After(at) })
	})
}

// TestLeaseHasAClientOfItsOwn: a lease that shares a client with other requests is late when that
// is busy.
func TestLeaseHasAClientOfItsOwn(t *testing.T) {
	t.Parallel()
	slow := func(c *rest.Config) { c.QPS, c.Burst = 1, 20 } // 20 callers wait 20 s each
	const tooLate = 6 * time.Second                         // more than a busy machine makes of it
	busy := func(w *world, c interface {
		CoreV1Pods(ctx context.Context) error
	}) {
		for range 20 {
			go func() {
				for w.ctx.Err() == nil {
					_ = c.CoreV1Pods(w.ctx)
				}
			}()
		}
	}
	late := func(w *world) time.Duration {
		var worst time.Duration
		for end := time.Now().Add(10 * time.Second); time.Now().Before(end); {
			worst = max(worst, time.Since(w.renewed()))
			select {
			case <-w.ctx.Done():
			case <-time.After(50 * time.Millisecond):
			}
		}
		return worst
	}
	t.Run("alone", func(t *testing.T) {
		w := newWorld(t)
		w.client = w.clientWith(slow)
		w.ready(w.aloneNode(&pinger{}, w.object(), vknode.WithNodeStatusUpdateInterval(time.Hour),
			vknode.WithNodeEnableLeaseV1WithRenewInterval(w.client.CoordinationV1().Leases("kube-node-lease"), 40, time.Second)))
		w.until("a lease", func() bool { return !w.renewed().IsZero() })
		busy(w, lister{w})
		if worst := late(w); worst < tooLate {
			t.Errorf("the lease was never later than %s; the test shows nothing", worst)
		}
	})
	t.Run("behind", func(t *testing.T) {
		w := newWorld(t)
		w.client = w.clientWith(slow)
		w.behind(func(c *provider.Config) {
			c.LeaseClient = w.clientWith(func(r *rest.Config) { *r = *provider.LeaseREST(r) })
			c.LeaseDuration = 4 * time.Second
		})
		w.until("a lease", func() bool { return !w.renewed().IsZero() })
		busy(w, lister{w})
		if worst := late(w); worst >= tooLate {
			t.Errorf("the lease, renewed each second, was %s late", worst)
		}
	})
}

type lister struct{ w *world }

func (l lister) CoreV1Pods(ctx context.Context) error {
	_, err := l.w.client.CoreV1().Pods(l.w.ns).List(ctx, metav1.ListOptions{Limit: 1})
	return err
}

// TestUnknownIsPutRight: what the node controller wrote during an outage is corrected at once, not
// with the next regular report.
func TestUnknownIsPutRight(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	o := w.behind(func(c *provider.Config) { c.RepairInterval = 100 * time.Millisecond })
	o.node.SetReady(true, "", "")
	w.until("Ready", func() bool { return w.condition(v1.NodeReady).Status == v1.ConditionTrue })
	foreign := v1.NodeCondition{Type: "shop.example/Checked", Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(), LastHeartbeatTime: metav1.Now()}
	w.until("written", func() bool {
		n := w.getNode()
		for i := range n.Status.Conditions {
			n.Status.Conditions[i].Status, n.Status.Conditions[i].Reason = v1.ConditionUnknown, "NodeStatusUnknown"
		}
		n.Status.Conditions = append(n.Status.Conditions, foreign)
		_, err := w.admin.CoreV1().Nodes().UpdateStatus(w.ctx, n, metav1.UpdateOptions{})
		return err == nil
	})
	testutil.Within(w.t, 10*time.Second, "put right", func() bool {
		return w.condition(v1.NodeReady).Status == v1.ConditionTrue && w.condition(v1.NodeDiskPressure).Status == v1.ConditionFalse
	})
	if w.condition(foreign.Type).Status != v1.ConditionTrue {
		t.Error("a condition of someone else is gone")
	}
}

// TestNodeMadeBeforeItsMachine: a node object that was created before its machine started is
// accepted, with the node's own rights, and has our annotation from the first report on.
func TestNodeMadeBeforeItsMachine(t *testing.T) {
	t.Parallel()
	w := newBareWorld(t)
	o := w.behind(func(c *provider.Config) { c.Client, c.LeaseClient = w.asNode(), w.asNode() })
	o.node.SetReady(true, "", "")
	w.until("Ready", func() bool { return w.condition(v1.NodeReady).Status == v1.ConditionTrue })
	n := w.getNode()
	if n.Annotations[provider.AnnotationDriver] == "" || n.Status.NodeInfo.KubeletVersion == "" || provider.CheckOwn(n) != nil {
		t.Errorf("it bears %v, and is %s", n.Annotations, n.Status.NodeInfo.KubeletVersion)
	}
}
