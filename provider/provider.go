package provider

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
)

// podWorkers is the number of virtual-kubelet's workers; the hooks return at once.
const podWorkers = 4

// Node is one node of the cluster. New starts nothing; Run does.
type Node struct {
	cfg    Config
	pods   *PodSource
	self   cache.SharedIndexInformer // our own node object
	nodes  *nodeClient
	status *nodeStatus

	controller *vknode.PodController

	standby     standby
	startup     startup
	cordoned    atomic.Bool // the node object was seen unschedulable
	registered  chan struct{}
	once        sync.Once
	registerLog *stateLog
	leaseLog    *stateLog
	onNode      func(*v1.Node)
}

// New builds a node from c.
func New(c Config) (*Node, error) {
	c.setDefaults()
	if err := c.validate(); err != nil {
		return nil, err
	}
	c.Info.KubeletVersion = cmp.Or(c.Info.KubeletVersion, builtVersion())
	self, err := newNodeInformer(c.Client, c.Registration.NodeName)
	if err != nil {
		return nil, fmt.Errorf("node informer: %w", err)
	}
	n := &Node{
		cfg:         c,
		pods:        c.Pods,
		self:        self,
		status:      newNodeStatus(c),
		registered:  make(chan struct{}),
		registerLog: registrationLog(),
		leaseLog:    renewalLog(),
		standby:     standby{instance: c.Instance, holdsHost: c.HoldsHost},
		startup:     startup{report: c.Started},
	}
	n.leaseLog.again = n.status.again.Send
	n.nodes = &nodeClient{
		NodeInterface: c.Client.CoreV1().Nodes(),
		addresses:     n.status.addresses,
		created:       n.recordPressures,
		rebooted: func(boot string) {
			n.RecordEvent(v1.EventTypeWarning, "Rebooted", fmt.Sprintf("Node %s has been rebooted, boot id: %s", c.Registration.NodeName, boot))
		},
		failed:  n.status.reportFailed,
		now:     time.Now,
		log:     reportLog(),
		standby: &n.standby,
		startup: &n.startup,
	}
	n.controller, err = vknode.NewPodController(vknode.PodControllerConfig{
		PodClient:                 &gate{PodsGetter: c.Client.CoreV1(), source: c.Source, loop: c.Loop, lister: c.Pods.lister},
		PodInformer:               outlines{c.Pods},
		EventRecorder:             quietRecorder{c.Recorder},
		Provider:                  &hooks{source: c.Source, held: c.Held, lister: c.Pods.lister},
		ConfigMapInformer:         noConfigMaps{},
		SecretInformer:            noSecrets{},
		ServiceInformer:           noServices{},
		SkipDownwardAPIResolution: true,
	})
	if err != nil {
		return nil, fmt.Errorf("pod controller: %w", err)
	}
	if _, err := self.AddEventHandler(n.selfHandler()); err != nil {
		return nil, fmt.Errorf("node informer: %w", err)
	}
	return n, nil
}

// Pods is Config.Pods.
func (n *Node) Pods() *PodSource { return n.pods }

// Registered is closed when the node object exists and is ours to report.
func (n *Node) Registered() <-chan struct{} { return n.registered }

// OnNode sets f, which is called with every version of our node object that the API server shows
// (with the podCIDR that the controller manager assigned). f must not block and must not modify the
// object. Call OnNode before Run.
func (n *Node) OnNode(f func(*v1.Node)) { n.onNode = f }

// SetReady sets the Ready condition. An empty reason and message default to the kubelet's:
// KubeletReady, "kubelet is posting ready status"; or KubeletNotReady.
func (n *Node) SetReady(ok bool, reason, message string) {
	c := Condition{v1.NodeReady, v1.ConditionTrue, cmp.Or(reason, "KubeletReady"), cmp.Or(message, "kubelet is posting ready status")}
	event := "NodeReady"
	if !ok {
		c = Condition{v1.NodeReady, v1.ConditionFalse, cmp.Or(reason, "KubeletNotReady"), cmp.Or(message, "no cause was given")}
		event = "NodeNotReady"
	}
	n.startup.ready(time.Now(), ok)
	if n.status.setCondition(c) {
		n.recordStatus(event)
	}
}

// recordStatus records a change of the node's status in a kubelet's words.
func (n *Node) recordStatus(event string) {
	n.cfg.Recorder.Eventf(n.reference(), v1.EventTypeNormal, event, "Node %s status is now: %s", n.cfg.Registration.NodeName, event)
}

// observeSchedulable records that the node was cordoned or uncordoned, and, as a kubelet does, that a
// node is cordoned when this process starts to report it.
func (n *Node) observeSchedulable(node *v1.Node) {
	if CheckOwn(node) != nil || n.Standby() {
		return
	}
	switch was := n.cordoned.Swap(node.Spec.Unschedulable); {
	case was == node.Spec.Unschedulable:
	case was:
		n.recordStatus("NodeSchedulable")
	default:
		n.recordStatus("NodeNotSchedulable")
	}
}

// Ready returns the Ready condition as it was set last.
func (n *Node) Ready() Condition {
	n.status.mu.Lock()
	defer n.status.mu.Unlock()
	return n.status.conditions[len(n.status.conditions)-1]
}

// SetCondition sets a condition other than Ready: a pressure, or one of ours.
func (n *Node) SetCondition(c Condition) { n.status.setCondition(c) }

// SetImages sets node.status.images; see NodeImages.
func (n *Node) SetImages(images []v1.ContainerImage) { n.status.setImages(images) }

// SetInfo replaces what the machine and its runtime report. It ignores m.KubeletVersion.
func (n *Node) SetInfo(m NodeInfo) { n.status.setInfo(m) }

// Standby reports whether another process has taken over the machine since this one lost it, and
// reports the node and its pods. Two reporting processes would overwrite each other endlessly, so
// this one reports nothing then.
func (n *Node) Standby() bool { return n.standby.active() }

// Resume reports the node again after this process has got the machine back.
func (n *Node) Resume() { n.status.changed.Send() }

// Allocatable is the node's current allocatable (for resourceFieldRef).
func (n *Node) Allocatable() v1.ResourceList {
	return n.status.node(time.Now(), false).Status.Allocatable
}

// reference is how events refer to this node.
func (n *Node) reference() *v1.ObjectReference {
	return pod.NodeReference(n.cfg.Registration.NodeName)
}

func (n *Node) selfHandler() cache.ResourceEventHandler {
	seen := func(obj any) {
		node := nodeOf(obj)
		if node == nil {
			return
		}
		n.standby.observe(node)
		select {
		case <-n.registered:
			n.status.observe(node)
		default: // the object is from before this run, and about to be patched
		}
		n.observeSchedulable(node)
		if n.onNode != nil {
			n.onNode(node)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc:    seen,
		UpdateFunc: func(_, obj any) { seen(obj) },
		DeleteFunc: func(any) {
			n.status.changed.Send() // the next report finds the object missing and recreates it
		},
	}
}

// Run serves the node until ctx ends, and returns nil then, or the first error that no retry can
// fix. It starts the pod informer, so the loop must have adopted what already runs, and handlers
// must be registered on Pods, before the call.
func (n *Node) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx).WithValues("node", n.cfg.Registration.NodeName)
	ctx, cancel := context.WithCancel(klog.NewContext(ctx, logger))
	defer cancel()

	n.cfg.Recorder.Event(n.reference(), v1.EventTypeNormal, "Starting", "Starting kubelet.")
	parts := []func(context.Context) error{
		func(ctx context.Context) error { n.pods.informer.RunWithContext(ctx); return nil },
		func(ctx context.Context) error { n.self.RunWithContext(ctx); return nil },
		func(ctx context.Context) error { return n.controller.Run(ctx, podWorkers) },
		n.keepRegistered,
	}
	if n.cfg.Server != nil {
		parts = append(parts, n.cfg.Server.Run)
	}
	var all errgroup.Group
	for _, part := range parts {
		all.Go(func() error {
			defer budget.From(ctx).Recover("node controller")
			defer cancel() // when one ends, the others are stopped
			if err := part(ctx); ctx.Err() == nil {
				return err // later errors are a result of the stop
			}
			return nil
		})
	}
	return all.Wait()
}
