// Package node runs one host as a node. Run connects to the host, takes its lock, adopts what runs on
// it, and serves until it is stopped: it wires the sync loop, the parts that the loop uses, and the
// provider, which reports the node to the API server.
package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	logsapi "k8s.io/component-base/logs/api/v1"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/shims"
	"github.com/bowline-k8s/bowline/features"
	"github.com/bowline-k8s/bowline/flap"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/kubeclient"
	"github.com/bowline-k8s/bowline/nodecert"
	"github.com/bowline-k8s/bowline/nodelogs"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/ownership"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/provider/api"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
	"github.com/bowline-k8s/bowline/readiness"
	"github.com/bowline-k8s/bowline/stats"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/images/credentialprovider"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
	"github.com/bowline-k8s/bowline/syncloop/startlimiter"
	"github.com/bowline-k8s/bowline/syncloop/volume"
	"github.com/bowline-k8s/bowline/tracing"
)

// Config is what Run needs.
type Config struct {
	// Host is the configuration of the host and its node, complete with its defaults.
	Host *config.Host
	// Hook sees every call to the host and to its runtime; nil: none does.
	Hook host.Hook
	// Recognize decides, before the host is claimed, whether it is the machine that it has to be; nil:
	// any machine may be the host.
	Recognize connect.Recognizer
	// Flags are the flags of the process, for /flagz.
	Flags map[string]string
	// Openings bounds how many hosts of the process open at the same time; nil: no bound.
	Openings *startlimiter.Limiter
	// Strangers bounds the unauthenticated callers of the nodes' APIs, for all hosts of the process
	// together.
	Strangers *api.Strangers
	// Metrics are the metrics of the node. They are passed again when the driver starts again, so that
	// counters continue.
	Metrics *Metrics
	// Logs has the newest log lines of the process, for node log queries.
	Logs *nodelogs.Own
	// Logging is how the process logs, for /configz; nil: not known.
	Logging *logsapi.LoggingConfiguration
	// Tracer makes a span of each pod's start, of its operations and of their calls; nil: none is made.
	// Tracing is its configuration, for /configz.
	Tracer  trace.Tracer
	Tracing *tracingapi.TracingConfiguration
	// Serving gets the node when it is about to serve. It may be nil.
	Serving func(*Node)
}

// Run runs the driver of one host: connect, recognize, claim, adopt, serve.
func Run(ctx context.Context, cfg Config) error {
	// Each deferred show is paired with a Recover that runs before it, so that show knows why the
	// host is quarantined, including a panic. Only the first show that runs tells the cluster.
	q := &quarantine{cfg: cfg.Host, nodeName: cfg.Host.NodeName}
	defer func() { q.show(ctx, nil, false) }()
	defer budget.From(ctx).Recover("the driver")
	n := newNode(cfg.Host)
	n.flags, n.strangers, n.metrics, n.logs, n.logging = cfg.Flags, cfg.Strangers, cfg.Metrics, cfg.Logs, cfg.Logging
	n.tracer, n.tracing = cfg.Tracer, cfg.Tracing
	var err error
	if n.programs, err = credentialPrograms(n.cfg, n.features); err != nil {
		return err
	}
	if n.host, err = connect.Open(ctx, n.cfg, traced(ctx, tracing.Hook(cfg.Tracer, n.metrics.operations.Hook(cfg.Hook)))); err != nil {
		return err
	}
	defer n.host.Close()
	opened, err := cfg.Openings.Take(ctx, false)
	if err != nil {
		return err
	}
	defer opened()
	facts, err := n.recognize(ctx, cfg.Recognize)
	if err != nil {
		return err
	}
	q.nodeName = n.name
	if n.cluster, err = cluster.Connect(ctx, n.cfg, n.name, cluster.OwnedAs(n.host, n.cfg, n.name), cluster.Counts{Wrap: n.metrics.client.Wrap, RenewFailed: n.metrics.parts.ClientCertificate()}); err != nil {
		return err
	}
	defer n.cluster.Close()
	defer func() { q.show(ctx, n.cluster, false) }()
	defer budget.From(ctx).Recover("the driver")
	err = n.hold(ctx, facts, q, func(n *Node) {
		n.stage = stageServing
		opened()
		if cfg.Serving != nil {
			cfg.Serving(n)
		}
	})
	opened()
	n.recordEnd(ctx, err)
	return err
}

// hold claims the host, and serves while it holds the claim.
func (n *Node) hold(ctx context.Context, facts host.Facts, q *quarantine, serving func(*Node)) error {
	dialled := notify.New()
	var err error
	if n.runtime, err = connect.Runtime(ctx, n.cfg, n.host, n.host.Hook, dialled); err != nil {
		return err
	}
	defer n.runtime.Close()
	claims := n.runtime
	if n.host.Fence != nil {
		// A connection of its own, which passes the shut fence.
		if claims, err = connect.Runtime(ownership.WithFenceBypass(ctx), n.cfg, n.host, n.host.Hook, notify.New()); err != nil {
			return err
		}
		defer claims.Close()
	}
	free, err := ownership.ReserveNodeName(n.cluster.KnownBy(), n.name, n.cfg.Name)
	if err != nil {
		return err
	}
	defer free()
	n.stage = stageSetup
	// Before the claim, so that a refused host stays as it was.
	if err := volume.CheckRecords(ctx, n.host, n.cfg.RootDirectory); err != nil {
		return err
	}
	n.held = ownership.NewHolder(n.host.Fence, func(ctx context.Context) (ownership.Claim, error) { return n.claim(ctx, claims) })
	if err := n.held.Acquire(ctx); err != nil {
		return err
	}
	defer func() { ownership.Release(ctx, n.held.Claim) }()
	defer func() { q.show(ctx, n.cluster, true) }()
	defer budget.From(ctx).Recover("the driver")

	n.stamp, n.clock = n.held.Claim.Stamp(), newClock(n.host)
	n.identity = cluster.IdentityRecorder{Cluster: n.cluster, Learn: n.held.Record, Due: notify.New()}
	n.shims = orphanedShims{dialled, &shims.Reaper{Machine: n.host, Runtime: n.runtime, Address: n.cfg.SocketPath()}}
	defer n.closeListener()
	if err := n.build(ctx, facts); err != nil {
		return err
	}
	serving(n)
	return n.run(ctx)
}

// newNode returns a node that has no host yet.
func newNode(cfg *config.Host) *Node {
	gates, _ := features.New(cfg.FeatureGates) // config has rejected those with a fault
	return &Node{cfg: cfg, features: gates, podNetwork: make(podNetwork, 1), began: time.Now(), started: make(chan provider.Startup, 1), pulled: notify.New(), apiBack: notify.New()}
}

// recognize completes the configuration with what the host says, and checks that the host may be
// this node.
func (n *Node) recognize(ctx context.Context, may connect.Recognizer) (facts host.Facts, err error) {
	if n.cfg, err = connect.Resolve(ctx, n.host, n.cfg); err != nil {
		return facts, err
	}
	if facts, err = n.host.Facts(ctx); err != nil {
		return facts, fmt.Errorf("read the host's facts: %w", err)
	}
	if err := n.host.Recognized(ctx, facts, may); err != nil {
		return facts, err
	}
	if err := swapAllowed(n.cfg, facts); err != nil {
		return facts, err
	}
	if n.name = n.cfg.NodeName; n.name == "" {
		n.name = strings.ToLower(facts.Hostname)
	}
	return facts, nil
}

// claim takes the claim of the host, through the connection to the runtime that passes the fence.
func (n *Node) claim(ctx context.Context, runtime *cri.Client) (ownership.Claim, error) {
	c, err := ownership.Take(ctx, n.cfg, n.host, runtime, n.cluster.Claim(n.name))
	if err != nil {
		return nil, err
	}
	// At each claim: a reboot of the host undoes it.
	if err := n.host.MakeShared(ctx, n.cfg.RootDirectory); err != nil {
		return nil, errors.Join(fmt.Errorf("make the root directory's mount shared: %w", err), c.Release(ctx))
	}
	return c, nil
}

// lost handles the loss of the claim, which may be taken again.
func (n *Node) lost() {
	n.followers.exposed.drop()
	if n.locks.Gone(time.Now()) {
		n.followers.node.RecordEvent(v1.EventTypeWarning, v1alpha1.ReasonLockLost, hosts.LockLost)
	}
}

// reacquired handles a claim that was taken again.
func (n *Node) reacquired() {
	if n.locks.Back() {
		n.followers.node.RecordEvent(v1.EventTypeNormal, v1alpha1.ReasonLockReacquired, hosts.LockReacquired)
	}
	n.seen.due.Send() // the host may have rebooted
	n.followers.pleg.Kick()
	n.followers.node.Resume()
	n.apiBack.Send() // re-reads the pods and reconciles their statuses
	n.followers.exposed.retry()
	n.identity.Due.Send()
}

// Node is one running node with all its parts.
type Node struct {
	cfg      *config.Host
	features features.Gates
	flags    map[string]string // of the process
	// strangers bounds unauthenticated callers, for all nodes of the process.
	strangers *api.Strangers
	metrics   *Metrics
	logs      *nodelogs.Own                 // of the process
	logging   *logsapi.LoggingConfiguration // of the process; nil: not known
	tracer    trace.Tracer                  // of the process; nil: there are no traces
	tracing   *tracingapi.TracingConfiguration
	name      string
	host      *connect.Host
	cluster   *cluster.Connection
	runtime   *cri.Client
	held      *ownership.Holder
	stage     stage
	freed     atomic.Bool // the event of the end of a quarantine has been recorded
	locks     flap.Bound  // of the events about the lock; held uses it
	stamp     string      // of the claim; the same at each claim
	ready     *readiness.Reporter
	// programs are the image credential providers.
	programs []credentialprovider.Program

	seen      *refresher // facts of the host and its runtime
	followers followers

	began   time.Time
	started chan provider.Startup // a node that was registered for the first time is ready

	podNetwork podNetwork
	pulled     notify.Signal // an image was pulled
	apiBack    notify.Signal // the API server answers again
	shims      orphanedShims
	identity   cluster.IdentityRecorder

	clock    clock
	listener net.Listener      // serves the node's API
	exposed  *exposure         // the listener on the host; nil if this process listens
	serving  *nodecert.Serving // nil if the serving certificate is a file or self-signed
	// Shared by all nodes of the cluster.
	services       *clusterwide.Services
	runtimeClasses *clusterwide.RuntimeClasses

	events   record.EventBroadcaster
	recorder record.EventRecorder
	sources  *podconfig.PodConfig
	api      *podconfig.API
	pleg     *pleg.Generator
	parts    parts
	static   staticPods
	loop     *syncloop.Loop
	stats    *stats.Server
	node     *provider.Node
}

// closeListener closes the listener of a node that failed before it served; the API server closes
// it otherwise.
func (n *Node) closeListener() {
	if n.listener != nil {
		_ = n.listener.Close()
	}
}

// run adopts the running pods, then serves until ctx ends or another process has the host.
func (n *Node) run(ctx context.Context) error {
	all, ctx := errgroup.WithContext(ctx)
	events, err := eventClient(n.cluster.Rest, *n.cfg.EventRecordQPS, *n.cfg.EventBurst)
	if err != nil {
		return err
	}
	n.events.StartRecordingToSink(&patientSink{
		EventSink: &typedcore.EventSinkImpl{Interface: events.Events("")},
		ctx:       ctx, quiet: n.loop.Quiet, met: n.cluster.Ready,
	})
	defer n.events.Shutdown()
	n.warnOfHost(nil, n.seen.load())
	n.adopt(ctx)
	part := func(name string, run func(context.Context) error) {
		all.Go(func() error {
			defer budget.From(ctx).Recover(name)
			err := run(ctx)
			switch {
			case ctx.Err() != nil:
				return nil // errors after ctx has ended are expected
			case err != nil:
				return fmt.Errorf("%s: %w", name, err)
			}
			return fmt.Errorf("%s: ended by itself", name)
		})
	}
	n.startCluster(part)
	n.startHost(part)
	n.startPods(part)
	_ = all.Wait() // the cause may also be that of the caller's context
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// adopt observes the host for the first time.
func (n *Node) adopt(ctx context.Context) {
	log := klog.FromContext(ctx)
	_ = n.clock.measure(ctx) // before the first relist; clock.watch retries it
	if err := n.pleg.Relist(ctx); err != nil {
		// Nothing is decided before the first relist succeeds; the PLEG retries it.
		log.Error(err, "Failed to list the running pods, will retry")
	}
	log.Info("Started managing the host", "node", n.name, "pods", len(n.pleg.Cache().Known()), "foreignSandboxes", n.pleg.Cache().Foreign())
}

// start runs a part of the node in a goroutine of its own. A part that ends, ends the node.
type start func(name string, run func(context.Context) error)

// startCluster starts what concerns the API server and the node's own objects.
func (n *Node) startCluster(part start) {
	part("API server", func(ctx context.Context) error {
		err := n.cluster.WaitForAPIServer(ctx, n.name, n.runtime)
		if err == nil {
			<-ctx.Done()
		}
		return err
	})
	part("services", n.cluster.AfterReady(func(ctx context.Context) error {
		return n.services.Run(ctx, n.cluster.Shared, n.cluster.Client)
	}))
	part("runtime classes", n.cluster.AfterReady(func(ctx context.Context) error {
		return n.runtimeClasses.Run(ctx, n.cluster.Shared, n.cluster.Client)
	}))
	part("readiness", n.ready.Run)
	part("startup", n.observeStartup)
	part("node", n.cluster.AfterReady(n.node.Run))
	part("node images", func(ctx context.Context) error {
		return watchImages(ctx, n.pulled, int(*n.cfg.NodeStatusMaxImages), n.runtime.ListImages, n.node.SetImages)
	})
	part("witnesses of the cluster", n.cluster.AfterReady(n.identity.Run))
	part("status resync", func(ctx context.Context) error {
		return catchUp(ctx, n.apiBack, n.cluster.Client.CoreV1(), n.name, n.parts.status.Reconcile)
	})
	if n.serving != nil {
		part("serving certificate", n.cluster.AfterReady(n.serving.Run))
	}
}

// startHost starts what concerns the host as a whole.
func (n *Node) startHost(part start) {
	part("ownership", func(ctx context.Context) error {
		return n.held.Keep(ctx, ownership.Callbacks{Lost: n.lost, Reacquired: n.reacquired})
	})
	part("clock", n.clock.watch)
	part("host facts", func(ctx context.Context) error { return n.seen.run(ctx, n.follow) })
	part("pod network", func(ctx context.Context) error { return n.podNetwork.deliver(ctx, n.runtime.UpdateRuntimeConfig) })
	part("QoS cgroups", n.parts.qos.Run)
	part("garbage collection", n.parts.sweeper.Run)
	part("image garbage collection", n.parts.imageGC.Run)
	part("container logs", n.parts.logs.Run)
	part("eviction", n.parts.eviction.Run)
	part("orphaned shims", n.shims.run)
	if n.parts.shutdown != nil {
		part("shutdown of the host", n.parts.shutdown.Run)
	}
	if n.exposed != nil {
		part("listening on the host", n.exposed.listener.Run)
	}
}

// startPods starts what concerns single pods.
func (n *Node) startPods(part start) {
	part("runtime observation", n.pleg.Run)
	part("pod sources", n.sources.Run)
	part("configMaps and secrets", n.parts.objects.Run)
	part("tokens", n.parts.tokens.Run)
	if n.parts.certificates != nil {
		part("pods' certificates", n.parts.certificates.Run)
	}
	part("probes", n.parts.prober.Run)
	part("status writer", n.parts.status.Run)
	part("sync loop", n.loop.Run)
	part("api source", func(ctx context.Context) error {
		cache.WaitForCacheSync(ctx.Done(), n.services.HasSynced)
		if _, err := n.node.Pods().AddEventHandler(n.api.Handler(ctx)); err != nil {
			return err
		}
		if err := n.api.Run(ctx); err != nil {
			return err
		}
		close(n.static.apiSeen)
		<-ctx.Done() // the event handler and the hooks deliver changes from now on
		return nil
	})
	n.static.start(part)
}

// leaseClient returns a client for the node's Lease alone.
func leaseClient(c *rest.Config) (kubernetes.Interface, error) {
	return kubeclient.New(provider.LeaseREST(c))
}
