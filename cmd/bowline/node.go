package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/shims"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/nodecert"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/provider/clusterwide"
	"github.com/bowline-k8s/bowline/syncloop"
	podconfig "github.com/bowline-k8s/bowline/syncloop/config"
	"github.com/bowline-k8s/bowline/syncloop/images/credentialprovider"
	"github.com/bowline-k8s/bowline/syncloop/owner"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
)

// runNode drives one host as one node: connect, recognize, claim, adopt, serve. The node
// is shown when it is about to serve.
func runNode(ctx context.Context, cfg *config.Host, hook host.Hook, may recognize, show func(*node)) error {
	// A Recover beside each, so that what the host is quarantined for is known to it: a
	// panic as well, which has not ended the function yet. The first one that runs tells.
	told := &quarantine{cfg: cfg, nodeName: cfg.NodeName}
	defer func() { told.show(ctx, nil, false) }()
	defer budget.From(ctx).Recover("the driver")
	programs, err := credentialPrograms(cfg)
	if err != nil {
		return err
	}
	machine, err := openMachine(ctx, cfg, traced(ctx, hook))
	if err != nil {
		return err
	}
	defer machine.Close()
	hook = machine.hook
	if cfg, err = onMachine(ctx, machine, cfg); err != nil {
		return err
	}
	facts, err := machine.Facts(ctx)
	if err != nil {
		return fmt.Errorf("read what the machine is: %w", err)
	}
	if err := machine.recognized(ctx, facts, may); err != nil {
		return err
	}
	if err := swapAllowed(cfg, facts); err != nil {
		return err
	}
	nodeName := cfg.NodeName
	if nodeName == "" {
		nodeName = strings.ToLower(facts.Hostname)
	}
	told.nodeName = nodeName
	cl, err := connectCluster(ctx, cfg, nodeName, ownedAs(machine, cfg, nodeName))
	if err != nil {
		return err
	}
	defer cl.close()
	defer func() { told.show(ctx, cl, false) }()
	defer budget.From(ctx).Recover("the driver")
	dialled := make(nudge, 1)
	client, err := connectRuntime(ctx, cfg, machine, hook, dialled)
	if err != nil {
		return err
	}
	defer client.Close()
	claims := client
	if machine.fence != nil {
		// By a connection of its own, which is made while the fence is shut as well.
		if claims, err = connectRuntime(pass(ctx), cfg, machine, hook, make(nudge, 1)); err != nil {
			return err
		}
		defer claims.Close()
	}
	giveBack, err := drivenNodes.take(cmp.Or(cl.uid, cl.witnesses.Node), nodeName, cfg.Name)
	if err != nil {
		return err
	}
	defer giveBack()
	held := &holding{fence: machine.fence, lessons: make(chan lesson), take: func(ctx context.Context) (claim, error) {
		c, err := claimRuntime(ctx, cfg, machine, claims, cl.claim(nodeName))
		if err != nil {
			return nil, err
		}
		// Each time: a restart of the machine takes it away.
		if err := machine.MakeShared(ctx, cfg.RootDirectory); err != nil {
			return nil, errors.Join(fmt.Errorf("make the root directory's mount shared: %w", err), c.Release(ctx))
		}
		return c, nil
	}}
	if err := held.hold(ctx); err != nil {
		return err
	}
	defer func() { letGo(ctx, held.claim) }()
	defer func() { told.show(ctx, cl, true) }()
	defer budget.From(ctx).Recover("the driver")

	n := &node{
		cfg: cfg, name: nodeName, host: machine, cluster: cl, runtime: client,
		programs: programs,
		held:     held, stamp: held.claim.Stamp(), podNetwork: make(podNetwork, 1), pulled: make(nudge, 1), apiBack: make(nudge, 1),
		clock:      newClock(machine),
		acquainted: acquaintance{cluster: cl, learn: held.learn, due: make(nudge, 1)},
		strays:     strayShims{dialled, &shims.Reaper{Machine: machine, Runtime: client, Address: cfg.SocketPath()}},
	}
	defer n.closeListener()
	if err := n.build(ctx, facts); err != nil {
		return err
	}
	show(n)
	return n.run(ctx)
}

// onMachine is cfg with the machine's real paths.
func onMachine(ctx context.Context, machine host.Host, cfg *config.Host) (*config.Host, error) {
	real := *cfg
	socket, err := realPath(ctx, machine, cfg.SocketPath())
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	real.Endpoint = strings.TrimSuffix(cfg.Endpoint, cfg.SocketPath()) + socket
	if real.RootDirectory, err = realPath(ctx, machine, cfg.RootDirectory); err != nil {
		return nil, fmt.Errorf("rootDirectory: %w", err)
	}
	return &real, nil
}

// connectRuntime opens the CRI socket through the host; dialled hears of each time.
// Where ctx has a pass, every dial has.
func connectRuntime(ctx context.Context, cfg *config.Host, machine host.Host, hook host.Hook, dialled nudge) (*cri.Client, error) {
	passes := ctx.Value(passKey{}) != nil
	return cri.Connect(ctx, cri.Config{
		Endpoint: cfg.Endpoint, Hook: hook, Budget: budget.From(ctx),
		Dial: func(ctx context.Context) (net.Conn, error) {
			if passes {
				ctx = pass(ctx)
			}
			// A call that passed the fence may wait for this: so it stops there as well.
			conn, err := machine.Dial(ctx, "unix", cfg.SocketPath())
			if err == nil {
				dialled.poke()
			}
			return conn, err
		},
	})
}

// claimRuntime takes the machine; c says for which node.
func claimRuntime(ctx context.Context, cfg *config.Host, machine host.Host, client *cri.Client, c owner.Config) (*owner.Claim, error) {
	c.Host, c.Runtime, c.RootDir = machine, client, cfg.RootDirectory
	c.Instance, c.Version, c.PID, c.StartedAt = string(uuid.NewUUID()), version, os.Getpid(), time.Now()
	c.Endpoint, c.AllowForeignPods = cfg.SocketPath(), cfg.AllowForeignPods
	return owner.Take(ctx, c)
}

// letGo gives the machine back: the lock always, the owner file where nothing of
// ours is left. A late error has nobody to go to but the log.
func letGo(ctx context.Context, claim claim) {
	log := klog.FromContext(ctx)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if err := claim.Release(ctx); err != nil {
		log.Info("The machine was not given back in full; the next run takes it over", "err", err)
	}
}

// node is one node while it runs, and all its parts.
type node struct {
	cfg     *config.Host
	name    string
	host    *machine
	cluster *cluster
	runtime *cri.Client
	held    *holding
	stamp   string // of the claim; the same each time that it is taken
	ready   readiness
	going   goingDown            // before said
	said    atomic.Pointer[word] // the last one on Ready; nil before the first
	// programs give credentials for images.
	programs []credentialprovider.Program

	seen *refresher // what the machine and its runtime are

	podNetwork podNetwork
	pulled     nudge // an image has been pulled
	apiBack    nudge // the API server answers again
	strays     strayShims
	acquainted acquaintance

	clock    clock
	listener net.Listener      // of the node's API
	exposed  *exposure         // listener, where the machine listens; else nil
	serving  *nodecert.Serving // nil: its certificate is a file, or of its own signing
	// What is the same for every node of the cluster.
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

// closeListener is for a node that did not come to serve; a served one is closed.
func (n *node) closeListener() {
	if n.listener != nil {
		_ = n.listener.Close()
	}
}

// run adopts what runs, then serves until ctx ends or the machine is no longer ours.
func (n *node) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	log := klog.FromContext(ctx)

	events, err := eventClient(n.cluster.rest)
	if err != nil {
		return err
	}
	n.events.StartRecordingToSink(&patientSink{
		EventSink: &typedcore.EventSinkImpl{Interface: events.Events("")},
		ctx:       ctx, quiet: n.loop.Quiet, met: n.cluster.met,
	})
	defer n.events.Shutdown()
	_ = n.clock.measure(ctx) // before the first look; it is tried again
	if err := n.pleg.Relist(ctx); err != nil {
		// Nothing is decided before the first look; the generator tries again.
		log.Info("What runs already could not be seen yet", "err", err)
	}
	log.Info("Drives the machine", "node", n.name, "pods", len(n.pleg.Cache().Known()), "foreignSandboxes", n.pleg.Cache().Foreign())

	var all sync.WaitGroup
	part := func(name string, run func(context.Context) error) {
		all.Go(func() {
			defer budget.From(ctx).Recover(name)
			err := run(ctx)
			switch {
			case ctx.Err() != nil: // what comes of being stopped is no news
			case err != nil:
				cancel(fmt.Errorf("%s: %w", name, err))
			default:
				cancel(fmt.Errorf("%s: ended by itself", name))
			}
		})
	}
	part("first answer of the API server", func(ctx context.Context) error {
		err := n.cluster.meet(ctx, n.name, n.runtime)
		if err == nil {
			<-ctx.Done()
		}
		return err
	})
	part("services", n.cluster.whenMet(func(ctx context.Context) error {
		return n.services.Run(ctx, n.cluster.shared, n.cluster.client)
	}))
	part("runtime classes", n.cluster.whenMet(func(ctx context.Context) error {
		return n.runtimeClasses.Run(ctx, n.cluster.shared, n.cluster.client)
	}))
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
		return catchUp(ctx, n.apiBack, n.cluster.client.CoreV1(), n.name, n.parts.status.Reconcile)
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
	part("stray shims", n.strays.run)
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
		<-ctx.Done() // its handler and the hooks bring the changes from now on
		return nil
	})
	n.static.start(part)
	part("node", n.cluster.whenMet(n.node.Run))
	part("ownership", n.held.keep)
	part("witnesses of the cluster", n.cluster.whenMet(n.acquainted.run))
	if n.serving != nil {
		part("serving certificate", n.cluster.whenMet(n.serving.Run))
	}
	if n.exposed != nil {
		part("listening on the machine", n.exposed.listener.Run)
	}
	if n.host.link != nil {
		part("link", func(ctx context.Context) error {
			return watchLink(ctx, n.host, n.cfg.LinkGrace.Duration, &n.ready, n.node)
		})
	}
	all.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// leaseClient is a client for the lease alone.
func leaseClient(c *rest.Config) (kubernetes.Interface, error) {
	return newClientset(provider.LeaseREST(c))
}
