package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	coreinformers "k8s.io/client-go/informers/core/v1"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/cri"
	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/provider"
	"github.com/bowline-k8s/bowline/syncloop"
	"github.com/bowline-k8s/bowline/syncloop/admit"
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
func (n *node) build(ctx context.Context) error {
	version, err := n.runtime.Version(ctx)
	if err != nil {
		return fmt.Errorf("ask the runtime for its version: %w", err)
	}
	n.runtimeVersion = version
	runtimeStatus, err := n.runtime.Status(ctx, false)
	if err != nil {
		return fmt.Errorf("ask the runtime for its status: %w", err)
	}
	machine, err := n.machine(ctx)
	if err != nil {
		return err
	}
	n.events, n.recorder = newRecorder(n.name)
	n.services = coreinformers.NewServiceInformer(n.cluster.client, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	if err := n.services.SetTransform(withoutManagedFields); err != nil {
		return err
	}

	n.sources = podconfig.New(sourceNames(n.cfg)...)
	if err := n.buildParts(machine); err != nil {
		return err
	}
	if n.pleg, err = pleg.New(pleg.Config{
		Runtime: n.runtime, Files: n.host, Owner: n.stamp, ClockOffset: n.clock.Offset, ClockDoubt: n.clock.doubt.poke,
		IsNotFound: cri.IsNotFound, IsTransport: cri.IsTransport, Hints: hints(n.runtime),
		// Each sweep looks at everything too: a look of its own is for when none comes.
		RelistWithEvents: gc.Period + 10*time.Second,
	}); err != nil {
		return err
	}
	reserved, err := n.reserved()
	if err != nil {
		return err
	}
	// The node and the loop know each other: the loop is given first, as hooks
	// that are filled in below.
	loop := &loopHooks{}
	ips, err := n.nodeIPs(machine.HostIPs)
	if err != nil {
		return err
	}
	server, err := n.server(ctx, loop, ips)
	if err != nil {
		return err
	}
	leases, err := leaseClient(n.cluster.rest)
	if err != nil {
		return err
	}
	n.node, err = provider.New(provider.Config{
		Client: n.cluster.client, LeaseClient: leases, Recorder: n.recorder,
		Loop: loop, Held: loop, Server: server,
		Registration: provider.Registration{
			NodeName: n.name, Labels: n.cfg.Labels, Taints: n.cfg.Taints, Annotations: madeOf(n.cfg), ProviderID: n.cfg.ProviderID,
			MaxPods: int64(n.cfg.MaxPods), Reserved: reserved, Addresses: n.addresses(ips),
		},
		Machine: provider.Machine{
			Facts: n.facts, RuntimeName: version.RuntimeName, RuntimeVersion: version.RuntimeVersion,
			KubeletVersion: provider.ReportedVersion(n.cluster.gitVersion), Handlers: handlers(runtimeStatus), Features: features(runtimeStatus),
			DeclaredFeatures: declaredFeatures,
		},
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
		n.pleg.Kick()
		n.node.Resume()
		n.apiBack.poke() // the pods' statuses are read, and put right
		n.exposed.poke()
	}
	n.held.lost = n.exposed.drop
	n.node.OnNode(func(node *v1.Node) {
		n.podNetwork.offer(node)
		n.takeBack(node)
		n.static.see(node)
	})
	judges := n.judges(runtimeStatus)
	n.api = podconfig.NewAPI(n.sources, n.node.Pods().Lister(), n.node.Pods().HasSynced)
	n.loop, err = syncloop.New(syncloop.Config{
		Runtime: n.runtime, Host: n.host, PLEG: n.pleg, Sources: n.sources,
		Volumes: n.parts.volumes, Objects: n.parts.objects, Tokens: n.parts.tokens, Images: n.parts.images,
		Certificates: n.parts.certificates,
		Prober:       n.parts.prober, Hooks: n.parts.hooks, Status: n.parts.status,
		Services: corelisters.NewServiceLister(n.services.GetIndexer()), Recorder: n.recorder,
		Machine: machine, NodeName: n.name, Allocatable: n.node.Allocatable,
		RuntimeName: version.RuntimeName, ContainerLogsDir: containerLogsDir,
		Resync: n.cfg.SyncFrequency.Duration, RuntimeChanged: n.ready.word,
		RuntimeHandler: n.runtimeHandler, Policy: policy(n.cfg),
		Node: judges.current, Reread: judges.reread,
		UserNamespaces: userNamespaces(runtimeStatus),
	})
	if err != nil {
		return err
	}
	loop.source, loop.loop = n.api, n.loop
	if n.parts.logs, err = n.containerLogs(machine.PodLogsDir); err != nil {
		return err
	}
	if n.parts.qos, err = n.parentCgroups(machine); err != nil {
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
		Host: n.host, Runtime: sweepRuntime{n.runtime, n.host, n.clock.Offset, n.pleg.List}, Volumes: n.parts.volumes, Pods: n.loop,
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
func (n *node) buildParts(m spec.Machine) (err error) {
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
		Host:         n.host, Objects: n.parts.objects, Tokens: n.parts.tokens, RootDir: m.RootDir,
		Claims: boundVolumes{core, n.name}, Trust: trustBundles{n.cluster.client.CertificatesV1()},
		Allocatable: func() v1.ResourceList { return n.node.Allocatable() },
		TmpfsNoSwap: volume.NoSwapSupported(n.facts.KernelVersion),
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
		Files: n.host, RecordPath: pullRecords(m.RootDir),
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

// machine gathers what the pods' specs are made from.
func (n *node) machine(ctx context.Context) (spec.Machine, error) {
	m := spec.Machine{
		RootDir: n.cfg.RootDirectory, PodLogsDir: n.cfg.PodLogsDirectory,
		CgroupDriver: n.cfg.CgroupDriver, CgroupVersion: n.facts.CgroupVersion,
		Owner: n.stamp, Hostname: n.facts.Hostname,
		MemoryBytes: n.facts.MemoryBytes, CPUs: n.facts.CPUs,
		// containerd clamps what it may not lower; other runtimes are not asked to.
		CanLowerOOMScore: n.facts.CanLowerOOMScore,
		ClusterDomain:    n.cfg.ClusterDomain, ClusterDNS: n.cfg.ClusterDNS,
		CPUCFSQuota: *n.cfg.CPUCFSQuota,
	}
	m.HugePageSizes = slices.Sorted(maps.Keys(n.facts.HugePages))
	if n.cfg.CgroupRoot != "/" { // which spec writes as nothing
		m.CgroupRoot = n.cfg.CgroupRoot
	}
	if *n.cfg.PodPidsLimit > 0 {
		m.PodPidsLimit = *n.cfg.PodPidsLimit
	}
	if m.CgroupDriver == "" {
		m.CgroupDriver = cgroupDriver(ctx, n.runtime)
	}
	for _, ip := range strings.Split(n.cfg.NodeIP, ",") {
		if ip = strings.TrimSpace(ip); ip != "" {
			m.HostIPs = append(m.HostIPs, ip)
		}
	}
	if len(m.HostIPs) == 0 {
		if len(n.facts.Addresses) == 0 {
			return m, errors.New("the machine has no address that others could reach; set nodeIP")
		}
		m.HostIPs = []string{n.facts.Addresses[0].String()}
	}
	if name := *n.cfg.ResolvConf; name != "" {
		data, err := n.host.ReadFile(ctx, name, 1<<20)
		if err != nil {
			return m, fmt.Errorf("read the machine's resolvConf: %w", err)
		}
		m.HostResolv = data
	}
	return m, nil
}

// cgroupDriver is what the runtime reports; runtimes too old to say so use cgroupfs.
func cgroupDriver(ctx context.Context, client *cri.Client) string {
	reply, err := client.RuntimeConfig(ctx)
	if err == nil && reply.GetLinux().GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD {
		return "systemd"
	}
	return "cgroupfs"
}

// nodeIPs are the addresses of the node: those of the machine, or of this process
// where the machine is far and does not listen for it.
func (n *node) nodeIPs(machine []string) ([]string, error) {
	if n.host.link == nil || n.cfg.KubeletExposure == config.ExposureHost {
		return machine, nil
	}
	server, _, err := rest.DefaultServerUrlFor(n.cluster.rest)
	if err != nil {
		return nil, err
	}
	ip, err := published(n.cfg, server)
	return []string{ip}, err
}

func (n *node) addresses(ips []string) []v1.NodeAddress {
	var out []v1.NodeAddress
	for _, ip := range ips {
		out = append(out, v1.NodeAddress{Type: v1.NodeInternalIP, Address: ip})
	}
	return append(out, v1.NodeAddress{Type: v1.NodeHostName, Address: n.facts.Hostname})
}

// reserved is what pods do not get of the machine: what the configuration names,
// beside what the hard eviction thresholds hold back.
func (n *node) reserved() (v1.ResourceList, error) {
	sum, err := heldBack(n.cfg, n.facts.MemoryBytes, n.facts.RootDiskBytes)
	if err != nil {
		return nil, err
	}
	for _, list := range []map[string]string{n.cfg.SystemReserved, n.cfg.KubeReserved} {
		for name, amount := range list {
			q, err := resource.ParseQuantity(amount)
			if err != nil {
				return nil, fmt.Errorf("reserved %s %q: %w", name, amount, err)
			}
			total := sum[v1.ResourceName(name)]
			total.Add(q)
			sum[v1.ResourceName(name)] = total
		}
	}
	return sum, nil
}

func handlers(st *runtimeapi.StatusResponse) []v1.NodeRuntimeHandler {
	var out []v1.NodeRuntimeHandler
	for _, h := range st.GetRuntimeHandlers() {
		features := h.GetFeatures()
		recursive, users := features.GetRecursiveReadOnlyMounts(), features.GetUserNamespaces()
		out = append(out, v1.NodeRuntimeHandler{Name: h.Name, Features: &v1.NodeRuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: &recursive, UserNamespaces: &users}})
	}
	return out
}

// userNamespaces tells which handlers can give a pod users of its own.
func userNamespaces(st *runtimeapi.StatusResponse) func(handler string) bool {
	can := map[string]bool{}
	for _, h := range st.GetRuntimeHandlers() {
		can[h.Name] = h.GetFeatures().GetUserNamespaces()
	}
	return func(handler string) bool { return can[handler] }
}

// policy is what the machine's owner forbids: what is not said is allowed.
func policy(cfg *config.Host) admit.Policy {
	forbids := func(allow *bool) bool { return allow != nil && !*allow }
	return admit.Policy{
		NoPrivileged:  forbids(cfg.Policy.AllowPrivileged),
		NoHostPath:    forbids(cfg.Policy.AllowHostPath),
		NoHostNetwork: forbids(cfg.Policy.AllowHostNetwork),
	}
}

// runtimeHandler looks a RuntimeClass up. Few pods name one, so that asking each
// time costs less than a watch.
func (n *node) runtimeHandler(ctx context.Context, class string) (string, error) {
	c, err := n.cluster.client.NodeV1().RuntimeClasses().Get(ctx, class, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return c.Handler, nil
}
