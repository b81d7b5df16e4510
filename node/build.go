package node

import (
	"context"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/faultinject"
	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/host/budget"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/readiness"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/admit"
	"github.com/bowline-k8s/bowline/syncloop/eviction"
	"github.com/bowline-k8s/bowline/syncloop/gc"
	"github.com/bowline-k8s/bowline/syncloop/imagegc"
	"github.com/bowline-k8s/bowline/syncloop/images"
	"github.com/bowline-k8s/bowline/syncloop/lifecycle"
	"github.com/bowline-k8s/bowline/syncloop/logs"
	"github.com/bowline-k8s/bowline/syncloop/objects"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
	"github.com/bowline-k8s/bowline/syncloop/podcerts"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
	"github.com/bowline-k8s/bowline/syncloop/prober"
	"github.com/bowline-k8s/bowline/syncloop/qos"
	"github.com/bowline-k8s/bowline/syncloop/shutdown"
	"github.com/bowline-k8s/bowline/syncloop/status"
	"github.com/bowline-k8s/bowline/syncloop/statuswriter"
	"github.com/bowline-k8s/bowline/syncloop/tokens"
	"github.com/bowline-k8s/bowline/syncloop/volume"
)

// parts are the managers that the sync loop uses.
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
	shutdown     *shutdown.Manager // nil: no graceful node shutdown
}

// build creates every part and connects them. It starts nothing.
func (n *Node) build(ctx context.Context, facts host.Facts) (err error) {
	if n.seen, err = n.look(ctx, facts); err != nil {
		return err
	}
	first := n.seen.load()
	machine := first.spec
	n.events, n.recorder = newRecorder(n.name)
	n.services, n.runtimeClasses = cluster.Shared.Services(), cluster.Shared.RuntimeClasses()
	n.sources = podconfig.New(sourceNames(n.cfg)...)
	if err := n.buildParts(machine.RootDir); err != nil {
		return err
	}
	if n.pleg, err = pleg.New(pleg.Config{
		Budget: budget.From(ctx), Runtime: n.runtime, Files: n.host, Owner: n.stamp, ClockOffset: n.clock.Offset, ClockDoubt: n.clock.doubt.Send,
		IsNotFound: cri.IsNotFound, IsTransport: cri.IsTransport, Hints: hints(n.runtime),
		// Each GC sweep lists through the PLEG as well. A relist of its own is needed only if no
		// sweep comes.
		RelistWithEvents: gc.Period + 10*time.Second,
	}); err != nil {
		return err
	}
	pods, err := provider.NewPodSource(n.cluster.Client, n.name)
	if err != nil {
		return err
	}
	n.api = podconfig.NewAPI(n.sources, pods.Lister(), pods.HasSynced)
	// The provider node and the sync loop refer to each other: the node gets hooks now, and the hooks
	// get the loop below.
	loop := &loopHooks{source: n.api}
	server, err := n.server(ctx, loop)
	if err != nil {
		return err
	}
	leases, err := leaseClient(n.cluster.Rest)
	if err != nil {
		return err
	}
	kubelet, series := provider.ReportedVersion(n.cluster.GitVersion), seriesOf.of(n.name)
	series.reports(kubelet)
	n.node, err = provider.New(provider.Config{
		Client: n.cluster.Client, LeaseClient: leases, Recorder: n.recorder,
		Pods: pods, Source: n.api, Loop: loop, Held: loop, Server: server,
		Registration: provider.Registration{
			NodeName: n.name, Labels: n.cfg.Labels, Taints: n.cfg.Taints, Annotations: madeOf(n.cfg), ProviderID: n.cfg.ProviderID,
			MaxPods: int64(n.cfg.MaxPods),
		},
		Info:           n.reported(first, kubelet),
		StatusInterval: n.cfg.NodeStatusReportFrequency.Duration,
		LeaseDuration:  time.Duration(n.cfg.NodeLeaseDurationSeconds) * time.Second,
		OnReconnect:    n.apiBack.Send,
		Instance:       string(uuid.NewUUID()),
		HoldsHost:      n.held.Held,
	})
	if err != nil {
		return err
	}
	n.ready = readiness.New(n.node, n.host, n.cfg.LinkGrace.Duration)
	n.held.OnReacquired = func() {
		n.seen.due.Send() // the host may have rebooted
		n.pleg.Kick()
		n.node.Resume()
		n.apiBack.Send() // re-reads the pods and reconciles their statuses
		n.exposed.retry()
		n.identity.Due.Send()
	}
	n.held.OnLost = n.exposed.drop
	n.node.OnNode(func(node *v1.Node) {
		n.podNetwork.offer(node)
		n.takeBack(node)
		n.static.see(node)
		n.identity.See(node)
		if provider.CheckOwn(node) == nil {
			series.see(node)
		}
		n.endQuarantine(node)
	})
	n.loop, err = syncloop.New(syncloop.Config{
		Runtime: n.runtime, Host: n.host, PLEG: n.pleg, Sources: n.sources,
		Volumes: n.parts.volumes, Objects: n.parts.objects, Tokens: n.parts.tokens, Images: n.parts.images,
		Certificates: n.parts.certificates,
		Prober:       n.parts.prober, Hooks: n.parts.hooks, Status: n.parts.status,
		Services: n.services, Recorder: n.recorder, ClusterDNS: clusterDNS(n.cfg.ClusterDNS, n.services),
		Machine: func() spec.Machine { return n.seen.load().spec }, HostResolv: n.resolvConf(), NodeName: n.name, Allocatable: n.node.Allocatable,
		RuntimeName: first.version.GetRuntimeName(), ContainerLogsDir: gc.ContainerLogsDir,
		Resync: n.cfg.SyncFrequency.Duration, RuntimeChanged: n.runtimeChanged,
		RuntimeHandler: n.runtimeHandler, Policy: policy(n.cfg),
		Node: func() admit.Node { return n.admissionNode(n.node.Current()) }, Reread: n.reread,
		UserNamespaces: n.userNamespaces, RecursiveReadOnly: n.recursiveReadOnly, Metrics: series.loop,
	})
	if err != nil {
		return err
	}
	loop.loop = n.loop
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
		Host: n.host, Runtime: gc.CRI{Client: n.runtime, Files: n.host, Offset: n.clock.Offset, Logs: machine.PodLogsDir, ListAll: n.pleg.List}, Volumes: n.parts.volumes, Pods: n.loop,
		Owner: n.stamp, RecordDir: volume.RecordDir(n.cfg.RootDirectory),
		LogsRoot: machine.PodLogsDir, LinksDir: gc.ContainerLogsDir,
		Period: faultinject.SweepPeriod(), MinAge: faultinject.SweepPeriod(),
		// A shim that gets the order to exit while it still has remnants of an interrupted start does not
		// exit; the reaper ends it.
		AfterRemnants: n.shims.due.Send,
	})
	return err
}

// buildParts creates the managers that build does not create itself.
func (n *Node) buildParts(root string) (err error) {
	core := n.cluster.Client.CoreV1()
	if n.parts.objects, err = objects.New(objects.Config{
		Client: n.cluster.Client, Strategy: objects.Strategy(n.cfg.ConfigMapAndSecretChangeDetectionStrategy),
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
		Trust:       trustBundles{n.cluster.Client.CertificatesV1()},
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
		Files: n.host, RecordPath: images.RecordFile(root),
		Verify: images.Verification(n.cfg.ImagePullCredentialsVerificationPolicy), Allowed: n.cfg.PreloadedImagesVerificationAllowlist,
	}); err != nil {
		return err
	}
	if n.parts.prober, err = prober.New(prober.Config{
		Exec: n.runtime, Dialer: n.host, Event: podEvents{n.recorder}.Event,
		Late: n.host.Late, DialSlack: n.host.DialSlack(),
	}); err != nil {
		return err
	}
	n.parts.hooks = &lifecycle.Runner{Exec: n.runtime, Dial: n.host}
	n.parts.status, err = statuswriter.New(statuswriter.Config{
		Pods: core, Merge: status.Merge, Silent: func() bool { return !n.cluster.IsReady() || n.node.Standby() },
		// The API server may not echo an accepted status, so no watch event would wake the worker.
		Changed: func(r pod.Ref) { n.loop.Wake(r.UID) },
		Mirror:  n.sources.Object,
	})
	return err
}
