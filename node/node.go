// Package node runs one host as a node. Run connects to the host, takes its lock, adopts what runs on
// it, and serves until it is stopped: it wires the sync loop, the parts that the loop uses, and the
// provider, which reports the node to the API server.
package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/shims"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/kubeclient"
	"github.com/bowline-k8s/bowline/nodecert"
	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/ownership"
	"github.com/bowline-k8s/bowline/procmem"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
	"github.com/bowline-k8s/bowline/readiness"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/images/credentialprovider"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// Run runs the driver of one host: connect, recognize, claim, adopt, serve. It calls show when
// the node is about to serve.
func Run(ctx context.Context, cfg *config.Host, hook host.Hook, may connect.Recognizer, show func(*Node)) error {
	// Each deferred show is paired with a Recover that runs before it, so that show knows why the
	// host is quarantined, including a panic. Only the first show that runs tells the cluster.
	q := &quarantine{cfg: cfg, nodeName: cfg.NodeName}
	defer func() { q.show(ctx, nil, false) }()
	defer budget.From(ctx).Recover("the driver")
	programs, err := credentialPrograms(cfg)
	if err != nil {
		return err
	}
	machine, err := connect.Open(ctx, cfg, traced(ctx, hook))
	if err != nil {
		return err
	}
	defer machine.Close()
	hook = machine.Hook
	if cfg, err = connect.Resolve(ctx, machine, cfg); err != nil {
		return err
	}
	facts, err := machine.Facts(ctx)
	if err != nil {
		return fmt.Errorf("read the host's facts: %w", err)
	}
	if err := machine.Recognized(ctx, facts, may); err != nil {
		return err
	}
	if err := swapAllowed(cfg, facts); err != nil {
		return err
	}
	nodeName := cfg.NodeName
	if nodeName == "" {
		nodeName = strings.ToLower(facts.Hostname)
	}
	q.nodeName = nodeName
	cl, err := cluster.Connect(ctx, cfg, nodeName, cluster.OwnedAs(machine, cfg, nodeName))
	if err != nil {
		return err
	}
	defer cl.Close()
	defer func() { q.show(ctx, cl, false) }()
	defer budget.From(ctx).Recover("the driver")
	dialled := notify.New()
	client, err := connect.Runtime(ctx, cfg, machine, hook, dialled)
	if err != nil {
		return err
	}
	defer client.Close()
	claims := client
	if machine.Fence != nil {
		// A connection of its own, which passes the shut fence.
		if claims, err = connect.Runtime(ownership.WithFenceBypass(ctx), cfg, machine, hook, notify.New()); err != nil {
			return err
		}
		defer claims.Close()
	}
	giveBack, err := drivenNodes.take(cmp.Or(cl.UID, cl.Witnesses.Node), nodeName, cfg.Name)
	if err != nil {
		return err
	}
	defer giveBack()
	// Before the claim, so that a refused host stays as it was.
	if err := volume.CheckRecords(ctx, machine, cfg.RootDirectory); err != nil {
		return err
	}
	held := ownership.NewHolder(machine.Fence, func(ctx context.Context) (ownership.Claim, error) {
		c, err := ownership.Take(ctx, cfg, machine, claims, cl.Claim(nodeName))
		if err != nil {
			return nil, err
		}
		// At each claim: a reboot of the host undoes it.
		if err := machine.MakeShared(ctx, cfg.RootDirectory); err != nil {
			return nil, errors.Join(fmt.Errorf("make the root directory's mount shared: %w", err), c.Release(ctx))
		}
		return c, nil
	})
	if err := held.Acquire(ctx); err != nil {
		return err
	}
	defer func() { ownership.Release(ctx, held.Claim) }()
	defer func() { q.show(ctx, cl, true) }()
	defer budget.From(ctx).Recover("the driver")

	n := &Node{
		cfg: cfg, name: nodeName, host: machine, cluster: cl, runtime: client,
		programs: programs,
		held:     held, stamp: held.Claim.Stamp(), podNetwork: make(podNetwork, 1), pulled: notify.New(), apiBack: notify.New(),
		clock:    newClock(machine),
		identity: cluster.IdentityRecorder{Cluster: cl, Learn: held.Record, Due: notify.New()},
		shims:    orphanedShims{dialled, &shims.Reaper{Machine: machine, Runtime: client, Address: cfg.SocketPath()}},
	}
	defer n.closeListener()
	if err := n.build(ctx, facts); err != nil {
		return err
	}
	show(n)
	return n.run(ctx)
}

// Node is one running node with all its parts.
type Node struct {
	cfg     *config.Host
	name    string
	host    *connect.Host
	cluster *cluster.Connection
	runtime *cri.Client
	held    *ownership.Holder
	stamp   string // of the claim; the same at each claim
	ready   *readiness.Reporter
	// programs are the image credential providers.
	programs []credentialprovider.Program

	seen *refresher // facts of the host and its runtime

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
	log := klog.FromContext(ctx)

	events, err := eventClient(n.cluster.Rest)
	if err != nil {
		return err
	}
	n.events.StartRecordingToSink(&patientSink{
		EventSink: &typedcore.EventSinkImpl{Interface: events.Events("")},
		ctx:       ctx, quiet: n.loop.Quiet, met: n.cluster.Ready,
	})
	defer n.events.Shutdown()
	_ = n.clock.measure(ctx) // before the first relist; clock.watch retries it
	if err := n.pleg.Relist(ctx); err != nil {
		// Nothing is decided before the first relist succeeds; the PLEG retries it.
		log.Error(err, "Failed to list the running pods, will retry")
	}
	log.Info("Manages the host", "node", n.name, "pods", len(n.pleg.Cache().Known()), "foreignSandboxes", n.pleg.Cache().Foreign())

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
	part("first answer of the API server", func(ctx context.Context) error {
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
	part("runtime observation", n.pleg.Run)
	part("pod sources", n.sources.Run)
	part("configMaps and secrets", n.parts.objects.Run)
	part("tokens", n.parts.tokens.Run)
	part("pods' certificates", n.parts.certificates.Run)
	part("probes", n.parts.prober.Run)
	part("status writer", n.parts.status.Run)
	part("clock", n.clock.watch)
	part("what the machine is", n.seen.run)
	part("statuses after an outage", func(ctx context.Context) error {
		return catchUp(ctx, n.apiBack, n.cluster.Client.CoreV1(), n.name, n.parts.status.Reconcile)
	})
	part("pod network", func(ctx context.Context) error { return n.podNetwork.deliver(ctx, n.runtime.UpdateRuntimeConfig) })
	part("node images", func(ctx context.Context) error {
		return watchImages(ctx, n.pulled, n.runtime.ListImages, n.node.SetImages)
	})
	part("sync loop", n.loop.Run)
	part("garbage collection", n.parts.sweeper.Run)
	part("container logs", n.parts.logs.Run)
	part("cgroups of the classes of service", n.parts.qos.Run)
	part("garbage collection of images", n.parts.imageGC.Run)
	part("eviction", n.parts.eviction.Run)
	part("orphaned shims", n.shims.run)
	if n.parts.shutdown != nil {
		part("shutdown of the machine", n.parts.shutdown.Run)
	}
	part("api source", func(ctx context.Context) error {
		cache.WaitForCacheSync(ctx.Done(), n.services.HasSynced)
		if _, err := n.node.Pods().AddEventHandler(n.api.Handler(ctx)); err != nil {
			return err
		}
		if err := n.api.Run(ctx); err != nil {
			return err
		}
		close(n.static.apiSeen)
		procmem.ReleaseStart()
		<-ctx.Done() // the event handler and the hooks deliver changes from now on
		return nil
	})
	n.static.start(part)
	part("node", n.cluster.AfterReady(n.node.Run))
	part("ownership", n.held.Keep)
	part("witnesses of the cluster", n.cluster.AfterReady(n.identity.Run))
	if n.serving != nil {
		part("serving certificate", n.cluster.AfterReady(n.serving.Run))
	}
	if n.exposed != nil {
		part("listening on the machine", n.exposed.listener.Run)
	}
	_ = all.Wait() // the cause may also be that of the caller's context
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// leaseClient returns a client for the node's Lease alone.
func leaseClient(c *rest.Config) (kubernetes.Interface, error) {
	return kubeclient.New(provider.LeaseREST(c))
}
