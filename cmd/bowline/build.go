package main

import (
	"context"
	"path"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop"
	podconfig "github.com/bowline-k8s/bowline/syncloop/config"
	"github.com/bowline-k8s/bowline/syncloop/eviction"
	"github.com/bowline-k8s/bowline/syncloop/gc"
	"github.com/bowline-k8s/bowline/syncloop/imagegc"
	"github.com/bowline-k8s/bowline/syncloop/images"
	"github.com/bowline-k8s/bowline/syncloop/lifecycle"
	"github.com/bowline-k8s/bowline/syncloop/logs"
	"github.com/bowline-k8s/bowline/syncloop/objects"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
	"github.com/bowline-k8s/bowline/syncloop/podcerts"
	"github.com/bowline-k8s/bowline/syncloop/prober"
	"github.com/bowline-k8s/bowline/syncloop/qos"
	"github.com/bowline-k8s/bowline/syncloop/shutdown"
	"github.com/bowline-k8s/bowline/syncloop/status"
	"github.com/bowline-k8s/bowline/syncloop/statuswriter"
	"github.com/bowline-k8s/bowline/syncloop/tokens"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// parts are the managers that the loop drives.
type parts struct {
	objects      *objects.Manager
	tokens       *tokens.Manager
	volumes      *volume.Manager
	certificates *podcerts.Manager
	images       *images.Manager
	prober       *prober.Manager
	hooks        *lifecycle.Runner
	status       *statuswriter.Writer
	sweeper      *gc.Sweeper
	logs         *logs.Rotator
	qos          *qos.Manager
	imageGC      *imagegc.Collector
	eviction     *eviction.Manager
	shutdown     *shutdown.Manager // nil: pods are not ended before the machine goes down
}

// pullRecords is the record of who may use which image, on the machine.
func pullRecords(root string) string { return path.Join(root, "bowline", "pulls.json") }

// containerLogsDir is where log collectors look.
const containerLogsDir = "/var/log/containers"

// build makes every part and joins them; nothing runs yet.
func (n *node) build(ctx context.Context, facts host.Facts) (err error) {
	if n.seen, err = n.look(ctx, facts); err != nil {
		return err
	}
	first := n.seen.load()
	machine := first.spec
	n.events, n.recorder = newRecorder(n.name)
	n.services, n.runtimeClasses = readClusters.Services(), readClusters.RuntimeClasses()
	n.sources = podconfig.New(sourceNames(n.cfg)...)
	if err := n.buildParts(machine.RootDir); err != nil {
		return err
	}
	if n.pleg, err = pleg.New(pleg.Config{
		Budget: budget.From(ctx), Runtime: n.runtime, Files: n.host, Owner: n.stamp, ClockOffset: n.clock.Offset, ClockDoubt: n.clock.doubt.poke,
		IsNotFound: cri.IsNotFound, IsTransport: cri.IsTransport, Hints: hints(n.runtime),
		// Each sweep looks at everything too: a look of its own is for when none comes.
		RelistWithEvents: gc.Period + 10*time.Second,
	}); err != nil {
		return err
	}
	// The node and the loop know each other: the loop is given first, as hooks
	// that are filled in below.
	loop := &loopHooks{}
	server, err := n.server(ctx, loop)
	if err != nil {
		return err
	}
	leases, err := leaseClient(n.cluster.rest)
	if err != nil {
		return err
	}
	kubelet, series := provider.ReportedVersion(n.cluster.gitVersion), seriesOf.of(n.name)
	series.reports(kubelet)
	n.node, err = provider.New(provider.Config{
		Client: n.cluster.client, LeaseClient: leases, Recorder: n.recorder,
		Loop: loop, Held: loop, Server: server,
		Registration: provider.Registration{
			NodeName: n.name, Labels: n.cfg.Labels, Taints: n.cfg.Taints, Annotations: madeOf(n.cfg), ProviderID: n.cfg.ProviderID,
			MaxPods: int64(n.cfg.MaxPods),
		},
		Machine:        n.reported(first, kubelet),
		StatusInterval: n.cfg.NodeStatusReportFrequency.Duration,
		LeaseDuration:  time.Duration(n.cfg.NodeLeaseDurationSeconds) * time.Second,
		Back:           n.apiBack.poke,
		Instance:       string(uuid.NewUUID()),
		Drives:         n.held.drives,
	})
	if err != nil {
		return err
	}
	n.node.SetReady(false, "", "the container runtime has not said yet whether it is ready")
	n.going.show = func(ok bool, reason, message string) {
		n.said.Store(&word{ok, reason, message})
		n.node.SetReady(ok, reason, message)
	}
	n.ready.set = n.going.word
	if n.host.link != nil {
		n.ready.delay = linkVerdict
	}
	n.held.back = func() {
		n.seen.due.poke() // it may have been rebooted
		n.pleg.Kick()
		n.node.Resume()
		n.apiBack.poke() // the pods' statuses are read, and put right
		n.exposed.poke()
		n.acquainted.due.poke()
	}
	n.held.lost = n.exposed.drop
	n.node.OnNode(func(node *v1.Node) {
		n.podNetwork.offer(node)
		n.takeBack(node)
		n.static.see(node)
		n.acquainted.see(node)
		if provider.CheckOwn(node) == nil {
			series.see(node)
		}
		n.endQuarantine(node)
	})
	judges := &judges{n}
	n.api = podconfig.NewAPI(n.sources, n.node.Pods().Lister(), n.node.Pods().HasSynced)
	n.loop, err = syncloop.New(syncloop.Config{
		Runtime: n.runtime, Host: n.host, PLEG: n.pleg, Sources: n.sources,
		Volumes: n.parts.volumes, Objects: n.parts.objects, Tokens: n.parts.tokens, Images: n.parts.images,
		Certificates: n.parts.certificates,
		Prober:       n.parts.prober, Hooks: n.parts.hooks, Status: n.parts.status,
		Services: n.services, Recorder: n.recorder, ClusterDNS: clusterDNS(n.cfg.ClusterDNS, n.services),
		Machine: func() spec.Machine { return n.seen.load().spec }, HostResolv: n.resolvConf(), NodeName: n.name, Allocatable: n.node.Allocatable,
		RuntimeName: first.version.GetRuntimeName(), ContainerLogsDir: containerLogsDir,
		Resync: n.cfg.SyncFrequency.Duration, RuntimeChanged: n.runtimeChanged,
		RuntimeHandler: n.runtimeHandler, Policy: policy(n.cfg),
		Node: judges.current, Reread: judges.reread,
		UserNamespaces: n.userNamespaces, RecursiveReadOnly: n.recursiveReadOnly, Metrics: series.loop,
	})
	if err != nil {
		return err
	}
	loop.source, loop.loop = n.api, n.loop
	n.seen.changed = n.follow
	if n.parts.logs, err = n.containerLogs(machine.PodLogsDir); err != nil {
		return err
	}
	if n.parts.qos, err = n.parentCgroups(); err != nil {
		return err
	}
	if err := n.buildStatic(); err != nil {
		return err
	}
	if err := n.buildPressure(ctx, machine); err != nil {
		return err
	}
	if err := n.buildShutdown(); err != nil {
		return err
	}
	n.parts.sweeper, err = gc.New(gc.Config{
		Host: n.host, Runtime: sweepRuntime{n.runtime, n.host, n.clock.Offset, machine.PodLogsDir, n.pleg.List}, Volumes: n.parts.volumes, Pods: n.loop,
		Owner: n.stamp, RecordDir: volume.RecordDir(n.cfg.RootDirectory),
		LogsRoot: machine.PodLogsDir, LinksDir: containerLogsDir,
		Period: sweepPeriod(), MinAge: sweepPeriod(),
		// A shim that was told to end while it still had something of a start that was
		// cut off has stayed.
		AfterRemnants: n.strays.due.poke,
	})
	return err
}

// buildParts makes the managers.
func (n *node) buildParts(root string) (err error) {
	core := n.cluster.client.CoreV1()
	if n.parts.objects, err = objects.New(objects.Config{
		Client: n.cluster.client, Strategy: objects.Strategy(n.cfg.ConfigMapAndSecretChangeDetectionStrategy),
		TTL: func() (time.Duration, bool) { return n.node.ObjectTTL() },
	}); err != nil {
		return err
	}
	if n.parts.tokens, err = tokens.New(tokens.Config{Client: core}); err != nil {
		return err
	}
	if n.parts.certificates, err = n.podCertificates(); err != nil {
		return err
	}
	if n.parts.volumes, err = volume.New(volume.Config{
		Certificates: n.parts.certificates,
		Host:         n.host, Objects: n.parts.objects, Tokens: n.parts.tokens, RootDir: root,
		Claims: boundVolumes{core, n.name},
		Allow: func(p *v1.Pod, volume string, pv *v1.PersistentVolume, has bool) error {
			return n.loop.AllowVolume(p, volume, pv, has)
		},
		Trust:       trustBundles{n.cluster.client.CertificatesV1()},
		Allocatable: func() v1.ResourceList { return n.node.Allocatable() },
		TmpfsNoSwap: func() bool { return volume.NoSwapSupported(n.seen.load().facts.KernelVersion) },
	}); err != nil {
		return err
	}
	parallel := 0
	if n.cfg.MaxParallelImagePulls != nil {
		parallel = int(*n.cfg.MaxParallelImagePulls)
	}
	if *n.cfg.SerializeImagePulls {
		parallel = 1
	}
	providers, err := n.credentialProviders()
	if err != nil {
		return err
	}
	if n.parts.images, err = images.New(images.Config{
		Providers: providers,
		Runtime:   n.runtime, Events: imageEvents{podEvents{n.recorder}, n.pulled}, MaxParallel: parallel, Transport: cri.IsTransport,
		Files: n.host, RecordPath: pullRecords(root),
		Verify: images.Verification(n.cfg.ImagePullCredentialsVerificationPolicy), Allowed: n.cfg.PreloadedImagesVerificationAllowlist,
	}); err != nil {
		return err
	}
	if n.parts.prober, err = prober.New(prober.Config{
		Exec: n.runtime, Dialer: n.host, Event: podEvents{n.recorder}.Event,
		Late: n.host.late, DialSlack: n.host.dialSlack(),
	}); err != nil {
		return err
	}
	n.parts.hooks = &lifecycle.Runner{Exec: n.runtime, Dial: n.host}
	n.parts.status, err = statuswriter.New(statuswriter.Config{
		Pods: core, Merge: status.Merge, Silent: func() bool { return !n.cluster.isMet() || n.node.Silent() },
		// An accepted status may have no echo from the API server to wake by.
		Changed: func(r pod.Ref) { n.loop.Wake(r.UID) },
		Mirror:  n.sources.Object,
	})
	return err
}
