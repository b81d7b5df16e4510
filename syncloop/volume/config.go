package volume

import (
	"context"
	"errors"
	"fmt"
	"sync"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
)

// Host is what the manager needs of a machine; host.Host has it.
type Host interface {
	host.Files
	host.Mounts
	Run(ctx context.Context, cmd host.Command) (host.Result, error)
}

// Objects gives configMaps and secrets. A missing one is an API NotFound error;
// any other error means that nothing is known of it.
type Objects interface {
	ConfigMap(ctx context.Context, namespace, name string) (*v1.ConfigMap, error)
	Secret(ctx context.Context, namespace, name string) (*v1.Secret, error)
}

// Tokens gives service account tokens that are bound to a pod.
type Tokens interface {
	// Token for an audience (empty: the API server) and a life in seconds (0: the
	// API server's choice), from a cache while it is fresh.
	Token(ctx context.Context, p *v1.Pod, audience string, expirationSeconds int64) (string, error)
	// Forget drops the pod's tokens.
	Forget(uid types.UID)
}

// Trust gives the cluster's trust bundles, as they are now: they are asked for at
// each Refresh. Errors are as Objects'.
type Trust interface {
	ClusterTrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error)
	// ClusterTrustBundles are those of a signer that the selector matches.
	ClusterTrustBundles(ctx context.Context, signer string, selector labels.Selector) ([]certificatesv1.ClusterTrustBundle, error)
}

// Certificates gives pods' own ones; podcerts.Manager has them.
type Certificates interface {
	// Bundle is the key and the certificate chain, in PEM, of the source at a place of a
	// projected volume.
	Bundle(ctx context.Context, p *v1.Pod, volume string, source int) (key, chain []byte, err error)
	// Forget drops the pod's.
	Forget(uid types.UID)
}

// Config of a Manager.
type Config struct {
	Host    Host
	Objects Objects
	Tokens  Tokens
	// Claims; nil: no persistent volumes.
	Claims Claims
	// Allow judges the persistent volume behind a volume of the pod before it is set up;
	// its error refuses it. has: the pod has had this very volume since before. nil allows
	// every one.
	Allow func(p *v1.Pod, volume string, pv *v1.PersistentVolume, has bool) error
	// Trust; nil: no clusterTrustBundles.
	Trust Trust
	// Certificates; nil: no podCertificates.
	Certificates Certificates
	// RootDir on the machine, "/var/lib/kubelet" by default; absolute.
	RootDir string
	// Allocatable of the node: stands in for limits in downward API fields, and
	// its memory is the size of a memory-backed volume without a smaller limit.
	Allocatable func() v1.ResourceList
	// TmpfsNoSwap: the machine's kernel takes tmpfs' noswap option; see
	// NoSwapSupported. Secrets are then never swapped out.
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
	case c.Allocatable == nil:
		return errors.New("volume: Allocatable is required")
	}
	return nil
}

// Mount is what a volume became on the machine, for the container's mounts.
type Mount struct {
	HostPath string // empty for an image, which the runtime mounts, and for a device
	// Device is the machine's path of a block volume, which containers have by
	// volumeDevices.
	Device string
	// ReadOnly: containers may only read it, whatever their volumeMount says.
	ReadOnly bool
	// SELinux: the runtime may relabel it; false for the machine's own paths.
	SELinux bool
}

// Manager makes and removes volumes. Its methods are safe for concurrent use;
// those of one pod wait for each other.
type Manager struct {
	cfg Config
	nfs *nfsTurns

	mu      sync.Mutex
	devices map[string]chan struct{} // by path, of capacity 1: held by who works on one
	pods    map[types.UID]*podState
	// mounts are as the last successful Prepare made them: a container that is
	// started again reads them without waiting for the API server.
	mounts map[types.UID]map[string]Mount
}

// podState is what this process knows of one pod's volumes. Its fields are
// read and written only by the holder of sem.
type podState struct {
	sem     chan struct{} // capacity 1: held while something works on the pod
	refresh chan struct{} // capacity 1: held for the length of one Refresh, sem or not
	gone    bool          // released and no longer in Manager.pods
	made    bool          // the record exists
	dirs    map[string]bool
	fresh   bool // the pod directory is new in this process: nothing can be mounted in it
	volumes map[string]*volumeState
}

// volumeState is what this process knows of one volume.
type volumeState struct {
	mount Mount
	ready bool
	bound bool // mount.HostPath is a mount, which a reboot of the machine takes away
	// hash of the content last written by us; written says if there is one.
	hash    [32]byte
	written bool
}

// New returns a manager; it does nothing by itself.
func New(c Config) (*Manager, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	return &Manager{cfg: c, nfs: newNFSTurns(), devices: map[string]chan struct{}{}, pods: map[types.UID]*podState{}, mounts: map[types.UID]map[string]Mount{}}, nil
}

// lock returns the pod's state, held by the caller until unlock.
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
			return nil, fmt.Errorf("volumes of pod %s: wait for the work before: %w", uid, ctx.Err())
		}
		if !ps.gone {
			return ps, nil
		}
		// Released while we waited: what comes now is a new beginning.
		<-ps.sem
	}
}

// known is lock for a pod whose directories this process has made or adopted; nil
// for any other.
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

// forget takes the pod's state away; the caller holds it.
func (m *Manager) forget(uid types.UID, ps *podState) {
	ps.gone = true
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pods[uid] == ps {
		delete(m.pods, uid)
		delete(m.mounts, uid)
	}
}
