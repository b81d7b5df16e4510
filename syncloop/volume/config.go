package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
)

// Host is the part of host.Host that the manager needs.
type Host interface {
	host.Files
	host.Mounts
	Run(ctx context.Context, cmd host.Command) (host.Result, error)
}

// Objects reads configMaps and secrets. A missing one is an API NotFound error; after any other
// error its state is unknown.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens gets service account tokens that are bound to a pod.
type Tokens interface {
	// Token returns a token for an audience (empty: the API server) with a life in seconds (0: the
	// API server chooses), from a cache while it is fresh.
	Token(ctx context.Context, p *v1.Pod, audience string, expirationSeconds int64) (string, error)
	// Forget drops the pod's tokens.
	Forget(uid types.UID)
}

// Trust reads the cluster's current trust bundles, at each Refresh. Errors are like those of
// Objects.
type Trust interface {
	ClusterTrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error)
	// ClusterTrustBundles returns the signer's bundles that match the selector.
	ClusterTrustBundles(ctx context.Context, signer string, selector labels.Selector) ([]certificatesv1.ClusterTrustBundle, error)
}

// Certificates gets pods' own certificates; podcerts.Manager implements it.
type Certificates interface {
	// Bundle returns the key and the certificate chain, in PEM, of a projected volume's source by
	// its index.
	Bundle(ctx context.Context, p *v1.Pod, volume string, source int) (key, chain []byte, err error)
	// Forget drops the pod's certificates.
	Forget(uid types.UID)
}

// Config configures a Manager.
type Config struct {
	Host    Host
	Objects Objects
	Tokens  Tokens
	// Claims is nil if persistent volumes are not supported.
	Claims Claims
	// Allow decides whether the persistent volume behind a volume of the pod may be set up; its
	// error refuses it. has is set if this very volume was set up for the pod before. Claims need it:
	// without it the host owner's policy would not apply to them.
	Allow func(p *v1.Pod, volume string, pv *v1.PersistentVolume, has bool) error
	// Trust is nil if clusterTrustBundles are not supported.
	Trust Trust
	// Certificates is nil if podCertificates are not supported.
	Certificates Certificates
	// RootDir is an absolute path on the host, "/var/lib/kubelet" by default.
	RootDir string
	// Allocatable returns the node's allocatable resources. They stand in for limits in downward
	// API fields; the memory is the size of a memory-backed volume without a smaller limit.
	Allocatable func() v1.ResourceList
	// Event records an event on a pod or on a persistent volume; it must not block. Nil: none is
	// recorded.
	Event func(about runtime.Object, kind, reason, message string)
	// Observe gets the plugin, the name and the outcome of each operation on a volume; it must not
	// block. Nil: nothing observes them.
	Observe func(plugin, operation string, took time.Duration, err error)
	// TmpfsNoSwap reports whether the host's kernel supports the noswap option of tmpfs (see
	// NoSwapSupported). Secrets are then never swapped out.
	TmpfsNoSwap func() bool
}

func (c *Config) validate() error {
	switch {
	case c.Host == nil:
		return errors.New("volume: Host is required")
	case c.Objects == nil:
		return errors.New("volume: Objects is required")
	case c.Tokens == nil:
		return errors.New("volume: Tokens is required")
	case len(c.RootDir) < 2 || c.RootDir[0] != '/':
		return fmt.Errorf("volume: RootDir %q must be an absolute path below /", c.RootDir)
	case c.Claims != nil && c.Allow == nil:
		return errors.New("volume: Claims need Allow")
	case c.Allocatable == nil:
		return errors.New("volume: Allocatable is required")
	}
	return nil
}

// Mount is a volume that is set up on the host, for the container's mounts.
type Mount struct {
	HostPath string // empty for an image, which the runtime mounts, and for a device
	// Device is the path of a block volume on the host, which containers use by volumeDevices.
	Device string
	// ReadOnly means that containers may only read it, whatever their volumeMount says.
	ReadOnly bool
	// SELinux means that the runtime may relabel it; false for the host's own paths.
	SELinux bool
}

// Manager sets up and removes volumes. Its methods are safe for concurrent use; calls for one pod
// wait for each other.
type Manager struct {
	cfg Config
	nfs *nfsTurns

	mu      sync.Mutex
	devices map[string]chan struct{} // by path, of capacity 1: held while one pod works on the device
	pods    map[types.UID]*podState
	// mounts are from the last successful Prepare: a container that restarts reads them without
	// waiting for the API server.
	mounts map[types.UID]map[string]Mount
}

// podState is what this process knows of one pod's volumes. Only the holder of sem reads or writes
// its fields.
type podState struct {
	sem     chan struct{} // capacity 1: held while something works on the pod
	refresh chan struct{} // capacity 1: held during a Refresh, with or without sem
	gone    bool          // released and no longer in Manager.pods
	made    bool          // the record and the pod directory exist
	dirs    map[string]bool
	fresh   bool // the pod directory is new: nothing can be mounted in it
	new     bool // this process created the pod directory
	parts   bool // this process may have mounted subPaths
	volumes map[string]*volumeState
}

// volumeState is what this process knows of one volume.
type volumeState struct {
	mount  Mount
	plugin string // PluginName, set by Prepare
	ready  bool
	failed bool   // the last attempt of this process to set it up
	first  bool   // no other pod had mounted its device when this process did for this pod
	bound  bool   // mount.HostPath is a mount point; a reboot of the host unmounts it
	memory string // where a file system in memory may be mounted for it; empty: nowhere
	// hash is of the content that this process wrote last; written is set if there is one.
	hash    [32]byte
	written bool
}

// New returns a Manager; it starts nothing.
func New(c Config) (*Manager, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Manager{cfg: c, nfs: newNFSTurns(), devices: map[string]chan struct{}{}, pods: map[types.UID]*podState{}, mounts: map[types.UID]map[string]Mount{}}, nil
}

// lock returns the pod's state, which the caller holds until unlock.
func (m *Manager) lock(ctx context.Context, uid types.UID) (*podState, error) {
	if err := checkUID(uid); err != nil {
		return nil, err
	}
	for {
		m.mu.Lock()
		ps := m.pods[uid]
		if ps == nil {
			ps = &podState{
				sem: make(chan struct{}, 1), refresh: make(chan struct{}, 1),
				dirs: map[string]bool{}, volumes: map[string]*volumeState{},
			}
			m.pods[uid] = ps
		}
		m.mu.Unlock()
		select {
		case ps.sem <- struct{}{}:
		case <-ctx.Done():
			return nil, fmt.Errorf("volumes of pod %s: wait for the previous operation: %w", uid, ctx.Err())
		}
		if !ps.gone {
			return ps, nil
		}
		// Released while we waited: start with a new state.
		<-ps.sem
	}
}

// known is lock for a pod whose directories this process has made or adopted; nil for any other.
func (m *Manager) known(ctx context.Context, uid types.UID) (*podState, error) {
	m.mu.Lock()
	_, known := m.pods[uid]
	m.mu.Unlock()
	if !known {
		return nil, nil
	}
	ps, err := m.lock(ctx, uid)
	if err != nil {
		return nil, err
	}
	if !ps.made {
		m.forget(uid, ps)
		m.unlock(ps)
		return nil, nil
	}
	return ps, nil
}

func (*Manager) unlock(ps *podState) { <-ps.sem }

// forget drops the pod's state, which the caller holds.
func (m *Manager) forget(uid types.UID, ps *podState) {
	ps.gone = true
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[uid] == ps {
		delete(m.pods, uid)
		delete(m.mounts, uid)
	}
}
