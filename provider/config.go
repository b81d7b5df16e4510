package provider

import (
	"context"
	"errors"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/bowline-k8s/bowline/pod"
)

// Source is the sync loop's source of the API server's pods: *podconfig.API. PodChanged returns at
// once and is safe for concurrent use.
type Source interface {
	// PodChanged says that something about the pod has changed: the source reads the lister.
	PodChanged(ref pod.Ref)
}

// Loop is the sync loop as virtual-kubelet's gated client sees it. TerminateRequested returns at once
// and is safe for concurrent use.
type Loop interface {
	// TerminateRequested says that virtual-kubelet wanted to delete the API object. The loop stops
	// what runs, and deletes the object itself when nothing runs any more.
	TerminateRequested(namespace, name string, uid types.UID)
}

// Held returns the pod that the loop has under a name, whatever the API server has.
type Held interface {
	PodByName(namespace, name string) (*v1.Pod, bool)
}

// Server is the kubelet API of this node: *api.Server.
type Server interface {
	// Run serves until ctx ends.
	Run(ctx context.Context) error
	// Port is the port that the node object names. It is bound before Run.
	Port() int32
}

// Config of a Node.
type Config struct {
	// Client authenticates as the node (system:node:<name>).
	Client kubernetes.Interface
	// LeaseClient is used only for the lease, so that a burst of other requests cannot delay
	// renewals and make the node look dead. Build it from LeaseREST.
	LeaseClient kubernetes.Interface
	// Recorder writes events with component "kubelet" and this node as host.
	Recorder record.EventRecorder
	// Pods is the informer of this node's pods, from NewPodSource. Source reads its lister.
	Pods   *PodSource
	Source Source
	Loop   Loop
	Held   Held
	// Server may be nil: then the node has no kubelet endpoint.
	Server Server

	Registration Registration
	Info         NodeInfo

	// Instance identifies this process's management of the machine, with a new value each time. The
	// node object has it in AnnotationInstance. HoldsHost reports whether this process holds the
	// machine now; nil: always. See Node.Standby.
	Instance  string
	HoldsHost func() bool

	// StatusInterval is how often an unchanged status is reported; default 5 min.
	StatusInterval time.Duration
	// OnReconnect is called several times in the minute after an outage of the API server, because the
	// watches may not yet show what changed meanwhile. It must not block; may be nil.
	OnReconnect func()
	// Started is called once for a node that this process has registered for the first time, when it is
	// ready. It must not block; may be nil.
	Started func(Startup)
	// RepairInterval is the least time between two corrections of conditions that another client
	// wrote; default 10 s.
	RepairInterval time.Duration
	// LeaseDuration, in whole seconds; default 40 s. The lease is renewed each quarter of it.
	LeaseDuration time.Duration
}

// LeaseREST is the configuration for Config.LeaseClient: a connection without the rate limit that
// other requests share, and with a timeout of 10 s.
func LeaseREST(c *rest.Config) *rest.Config {
	l := rest.CopyConfig(c)
	l.QPS = -1
	l.Timeout = 10 * time.Second
	return l
}

func (c *Config) setDefaults() {
	if c.StatusInterval == 0 {
		c.StatusInterval = 5 * time.Minute
	}
	if c.RepairInterval == 0 {
		c.RepairInterval = 10 * time.Second
	}
	if c.LeaseDuration == 0 {
		c.LeaseDuration = 40 * time.Second
	}
	if c.HoldsHost == nil {
		c.HoldsHost = func() bool { return true }
	}
	if c.Registration.MaxPods == 0 {
		c.Registration.MaxPods = 110
	}
}

func (c *Config) validate() error {
	var errs []error
	need := func(ok bool, field string) {
		if !ok {
			errs = append(errs, fmt.Errorf("%s is required", field))
		}
	}
	need(c.Client != nil, "Client")
	need(c.LeaseClient != nil, "LeaseClient")
	need(c.Recorder != nil, "Recorder")
	need(c.Pods != nil, "Pods")
	need(c.Source != nil, "Source")
	need(c.Loop != nil, "Loop")
	need(c.Held != nil, "Held")
	need(c.Registration.NodeName != "", "Registration.NodeName")
	if c.LeaseDuration < 0 || c.LeaseDuration%time.Second != 0 {
		errs = append(errs, fmt.Errorf("LeaseDuration %s: want whole seconds", c.LeaseDuration))
	}
	if len(errs) > 0 {
		return fmt.Errorf("provider: %w", errors.Join(errs...))
	}
	return nil
}
