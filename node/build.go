package node

import (
	"context"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/faultinject"
	"github.com/bowline-k8s/bowline/features"
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
	certificates *podcerts.Manager // nil: pods have none
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

// build creates every part and connects them, each after those that it needs. It starts nothing.
//
// Some parts call each other, and one of two has to exist first. That one gets a function that reads
// n.node, n.api or n.loop when it is called, or loopHooks, which does the same: build sets these
// fields, and nothing calls such a function before run.
func (n *Node) build(ctx context.Context, facts host.Facts) (err error) {
	if n.seen, err = n.look(ctx, facts); err != nil {
		return err
	}
	n.events, n.recorder = newRecorder(n.name)
	n.services, n.runtimeClasses = cluster.Shared.Services(), cluster.Shared.RuntimeClasses()
	n.sources = podconfig.New(sourceNames(n.cfg)...)
	n.sources.View = podView(n.features)
	n.parts.hooks = &lifecycle.Runner{Exec: n.runtime, Dial: n.host, Fallback: n.metrics.parts.HTTPSFallback, SleepCut: n.metrics.parts.SleepCut, Event: func(p *v1.Pod, kind, reason, message string) {
		syncloop.Event(n.recorder, p, "", kind, reason, message)
	}}
	for _, build := range []func(context.Context) error{
		n.buildObjects, n.buildVolumes, n.buildImages, n.buildProber, n.buildStatusWriter, n.buildPLEG, n.buildStats,
		n.buildNode, n.buildLoop,
		n.buildLogs, n.buildQOS, n.buildStatic, n.buildPressure, n.buildShutdown, n.buildSweeper,
	} {
		if err := build(ctx); err != nil {
			return err
		}
	}
	n.followers = followers{n.node, n.pleg, n.loop, n.exposed}
	return nil
}

// buildObjects creates the managers of what pods read from the API server: ConfigMaps, Secrets,
// service account tokens and certificates.
func (n *Node) buildObjects(context.Context) (err error) {
	if n.parts.objects, err = objects.New(objects.Config{
		Client: n.cluster.Client, Strategy: objects.Strategy(n.cfg.ConfigMapAndSecretChangeDetectionStrategy),
		TTL: func() (time.Duration, bool) { return n.node.ObjectTTL() },
	}); err != nil {
		return err
	}
	if n.parts.tokens, err = tokens.New(tokens.Config{Client: n.cluster.Client.CoreV1()}); err != nil {
		return err
	}
	if n.features.Enabled(features.PodCertificateRequest) {
		n.parts.certificates, err = n.podCertificates()
	}
	return err
}

func (n *Node) buildVolumes(context.Context) (err error) {
	cfg := volume.Config{
		Host: n.host, Objects: n.parts.objects, Tokens: n.parts.tokens, RootDir: n.seen.load().spec.RootDir,
		Claims: boundVolumes{n.cluster.Client.CoreV1(), n.name},
		Allow: func(p *v1.Pod, volume string, pv *v1.PersistentVolume, has bool) error {
			return n.loop.AllowVolume(p, volume, pv, has)
		},
		Allocatable: func() v1.ResourceList { return n.node.Allocatable() },
		Observe:     n.metrics.parts.Stored,
		Event:       n.recorder.Event,
		TmpfsNoSwap: func() bool { return volume.NoSwapSupported(n.seen.load().facts.KernelVersion) },
	}
	if n.parts.certificates != nil {
		cfg.Certificates = n.parts.certificates
	}
	if n.features.Enabled(features.ClusterTrustBundleProjection) {
		cfg.Trust = trustBundles{n.cluster.Client.CertificatesV1()}
	}
	n.parts.volumes, err = volume.New(cfg)
	return err
}

func (n *Node) buildImages(context.Context) error {
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
	cfg := images.Config{
		Providers: providers,
		Runtime:   n.runtime, Events: imageEvents{podEvents{n.recorder}, n.pulled}, MaxParallel: parallel, Transport: cri.IsTransport,
		PullQPS: int(*n.cfg.RegistryPullQPS), PullBurst: int(*n.cfg.RegistryBurst),
		Ensured: func(policy v1.PullPolicy, present, pull *bool) {
			n.metrics.parts.ImageEnsured(strings.ToLower(string(policy)), present, pull)
		},
		Checked: func(c images.Check) { n.metrics.parts.ImageChecked(string(c)) }, Pulled: n.metrics.parts.Pulled,
	}
	if n.features.Enabled(features.KubeletEnsureSecretPulledImages) { // otherwise every pod may use every image
		cfg.Files, cfg.RecordPath = n.host, images.RecordFile(n.seen.load().spec.RootDir)
		cfg.Verify, cfg.Allowed = images.Verification(n.cfg.ImagePullCredentialsVerificationPolicy), n.cfg.PreloadedImagesVerificationAllowlist
	}
	n.parts.images, err = images.New(cfg)
	return err
}

func (n *Node) buildProber(context.Context) (err error) {
	n.parts.prober, err = prober.New(prober.Config{
		Exec: n.runtime, Dialer: n.host, Event: podEvents{n.recorder}.Event,
		Late: n.host.Late, DialSlack: n.host.DialSlack(), Metrics: n.metrics.probes,
	})
	return err
}

func (n *Node) buildStatusWriter(context.Context) (err error) {
	n.parts.status, err = statuswriter.New(statuswriter.Config{
		Pods: n.cluster.Client.CoreV1(), Merge: status.Merge, Silent: func() bool { return !n.cluster.IsReady() || n.node.Standby() },
		// The API server may not echo an accepted status, so no watch event would wake the worker.
		Changed: func(r pod.Ref) { n.loop.Wake(r.UID) },
		Mirror:  n.sources.Object,
		Synced:  n.metrics.parts.StatusSynced,
	})
	return err
}

func (n *Node) buildPLEG(ctx context.Context) (err error) {
	n.pleg, err = pleg.New(pleg.Config{
		Budget: budget.From(ctx), Runtime: n.runtime, Files: n.host, Owner: n.stamp, ClockOffset: n.clock.Offset, ClockDoubt: n.clock.doubt.Send,
		IsNotFound: cri.IsNotFound, IsTransport: cri.IsTransport, Hints: hints(n.runtime),
		// Each GC sweep lists through the PLEG as well. A relist of its own is needed only if no
		// sweep comes; a quiet host is swept every second time.
		RelistWithEvents: 2*gc.Period + 10*time.Second, Relisted: n.metrics.parts.Relisted,
		Looked: n.metrics.parts.PodRelisted, Dropped: n.metrics.parts.HintDropped,
	})
	return err
}

// buildNode creates what the cluster sees: the Node with its conditions, and the node's API.
func (n *Node) buildNode(ctx context.Context) error {
	loop := &loopHooks{n}
	server, err := n.server(ctx, loop)
	if err != nil {
		return err
	}
	leases, err := leaseClient(n.cluster.Rest)
	if err != nil {
		return err
	}
	pods, err := provider.NewPodSource(n.cluster.Client, n.name)
	if err != nil {
		return err
	}
	n.api = podconfig.NewAPI(n.sources, pods.Lister(), pods.HasSynced)
	kubelet := provider.ReportedVersion(n.cluster.GitVersion)
	n.metrics.reports(kubelet)
	n.node, err = provider.New(provider.Config{
		Client: n.cluster.Client, LeaseClient: leases, Recorder: n.recorder,
		Pods: pods, Source: n.api, Loop: loop, Held: loop, Server: server,
		Registration: provider.Registration{
			NodeName: n.name, Labels: n.cfg.Labels, Taints: n.cfg.Taints, Annotations: madeOf(n.cfg), ProviderID: n.cfg.ProviderID,
			MaxPods: int64(n.cfg.MaxPods), PodsPerCore: int64(n.cfg.PodsPerCore),
		},
		Info:           n.reported(n.seen.load(), kubelet),
		StatusInterval: n.cfg.NodeStatusReportFrequency.Duration,
		LeaseDuration:  time.Duration(n.cfg.NodeLeaseDurationSeconds) * time.Second,
		OnReconnect:    n.apiBack.Send,
		Instance:       string(uuid.NewUUID()),
		HoldsHost:      n.held.Held,
		Started:        func(s provider.Startup) { n.started <- s }, // it has room for the only one
	})
	if err != nil {
		return err
	}
	n.ready = readiness.New(n.node, n.host.Link, n.host.Address, n.cfg.LinkGrace.Duration)
	n.node.OnNode(n.observeNode)
	return nil
}

// observeNode handles a new version of the Node object.
func (n *Node) observeNode(node *v1.Node) {
	n.podNetwork.offer(node)
	n.resetExposed(node)
	n.static.see(node)
	n.identity.See(node)
	if provider.CheckOwn(node) == nil {
		n.metrics.see(node)
	}
	n.endQuarantine(node)
}

// buildLoop creates the sync loop.
func (n *Node) buildLoop(context.Context) (err error) {
	n.loop, err = syncloop.New(n.loopConfig())
	return err
}

func (n *Node) loopConfig() syncloop.Config {
	first, most := restartPeriods(n.cfg, n.features)
	cfg := syncloop.Config{
		Runtime: n.runtime, Host: n.host, PLEG: n.pleg, Sources: n.sources,
		Volumes: n.parts.volumes, Objects: n.parts.objects, Tokens: n.parts.tokens, Images: n.parts.images,
		Prober: n.parts.prober, Hooks: n.parts.hooks, Status: n.parts.status,
		Services: n.services, Recorder: n.recorder, ClusterDNS: clusterDNS(n.cfg.ClusterDNS, n.services),
		Machine: func() spec.Machine { return n.seen.load().spec }, HostResolv: n.resolvConf(), NodeName: n.name, Allocatable: n.node.Allocatable,
		RuntimeName: n.seen.load().version.GetRuntimeName(), ContainerLogsDir: gc.ContainerLogsDir,
		Resync: n.cfg.SyncFrequency.Duration, FirstRestartPeriod: first, MaxRestartPeriod: most, RuntimeChanged: n.runtimeChanged,
		RuntimeHandler: n.runtimeHandler, Policy: policy(n.cfg),
		Node: func() admit.Node { return n.admissionNode(n.node.Current()) }, Reread: n.reread,
		UserNamespaces: n.userNamespaces, RecursiveReadOnly: n.recursiveReadOnly, Metrics: n.metrics.loop, Tracer: n.tracer,
		IDsPerPod:         uint32(*n.cfg.UserNamespaces.IDsPerPod),
		StopSignals:       n.features.Enabled(features.ContainerStopSignals),
		FixedPodResources: !n.features.Enabled(features.InPlacePodLevelResourcesVerticalScaling),
	}
	if n.parts.certificates != nil {
		cfg.Certificates = n.parts.certificates
	}
	return cfg
}

// buildSweeper creates the garbage collector of what pods left in the runtime and on the host.
func (n *Node) buildSweeper(context.Context) (err error) {
	logs := n.seen.load().spec.PodLogsDir
	n.parts.sweeper, err = gc.New(gc.Config{
		Host: n.host, Runtime: gc.CRI{Client: n.runtime, Files: n.host, Offset: n.clock.Offset, Logs: logs, ListAll: n.pleg.List}, Volumes: n.parts.volumes, Pods: n.loop,
		Owner: n.stamp, RecordDir: volume.RecordDir(n.cfg.RootDirectory),
		LogsRoot: logs, LinksDir: gc.ContainerLogsDir,
		Period: faultinject.SweepPeriod(), MinAge: faultinject.SweepPeriod(),
		// A shim that gets the order to exit while it still has remnants of an interrupted start does not
		// exit; the reaper ends it.
		AfterRemnants: n.shims.due.Send, Event: n.node.RecordEvent,
		Swept: n.metrics.parts.OrphansCleaned,
		Quiet: func(since time.Time) bool { return n.pleg.Quiet(since) && n.loop.Unchanged(since) },
	})
	return err
}
