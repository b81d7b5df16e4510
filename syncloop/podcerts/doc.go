// Package podcerts has certificates signed for pods' podCertificate volumes, by the
// PodCertificateRequest API, and renews them (the kubelet's podcertificate manager).
//
// Each projection of a pod is one record:
//
//	           signed                  time to renew
//	asking ──────────────► issued ◄──────────────────► renewing
//	   │ denied or failed, for good                       │
//	   └───────────────────► refused ◄────────────────────┘
//
// asking has a key and a request, or the failure of the last attempt at one; renewing
// has those beside what serves. Nothing outlives this process: keys are in memory and
// in the volumes, and a new process asks anew. A request that is not to be seen ten
// minutes after it was made has been deleted, and is made again.
package podcerts

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"
)

// Config of a Manager.
type Config struct {
	Client kubernetes.Interface
	// NodeName, and the node that has it, which a request names by its UID.
	NodeName string
	Node     func(context.Context) (*v1.Node, error)
	// ServiceAccount that a pod has.
	ServiceAccount func(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
	// Event tells of a pod's requests that were refused, and of certificates that end.
	// It must not block.
	Event func(p *v1.Pod, reason, message string)
}

const (
	// patience is how long a Bundle that was just asked for is waited for.
	patience = 2 * time.Second
	// abandon is after when a request that is not to be seen counts as deleted, and
	// overdue how long after its time a renewal is late. jitter spreads both, and renewals.
	abandon, overdue, jitter = 10 * time.Minute, 10 * time.Minute, 5 * time.Minute
	// again after a request that could not be made, doubling to the last.
	firstAgain, lastAgain = time.Second, time.Minute
	// rest is after how long a certificate may be renewed at the earliest, whatever its
	// times are: a machine whose clock is ahead would ask for ever.
	rest = time.Minute
	// callTimeout of one request to the API server.
	callTimeout = 10 * time.Second
	// informAgain: all records are looked at this often, whatever was heard.
	lookAgain = time.Minute
)

// Manager keeps certificates. Its methods are safe for concurrent use.
type Manager struct {
	cfg     Config
	updates chan types.UID
	wake    chan struct{} // capacity 1: something is due
	turn    chan struct{} // capacity 1: held while a key is made, which takes a processor

	mu       sync.Mutex
	records  map[key]*record
	changed  map[types.UID]bool // pods to be told of
	informer cache.SharedIndexInformer
	lister   certificateslisters.PodCertificateRequestLister
}

type key struct {
	uid    types.UID
	volume string
	source int // its place among the volume's sources
}

// record is one projection. Its fields are guarded by Manager.mu.
type record struct {
	pod    *v1.Pod
	source *v1.PodCertificateProjection
	// busy: a request is being made.
	busy    bool
	settled chan struct{} // closed when there is a first certificate, or a refusal

	request *request // under way
	bundle  *bundle  // serves; nil: none yet
	refused error    // for good
	// fault of the last attempt at a request; again is when the next one is made, wait
	// what it waited.
	fault error
	again time.Time
	wait  time.Duration
}

type request struct {
	key     []byte // PEM
	name    string
	abandon time.Time
}

type bundle struct {
	key, chain      []byte // PEM
	renew, ends     time.Time
	toldLate, ended bool
}

// New makes a Manager; it starts nothing.
func New(c Config) (*Manager, error) {
	if c.Client == nil || c.NodeName == "" || c.Node == nil || c.ServiceAccount == nil || c.Event == nil {
		return nil, errors.New("podcerts: Client, NodeName, Node, ServiceAccount and Event are required")
	}
	return &Manager{cfg: c, updates: make(chan types.UID), wake: make(chan struct{}, 1), turn: make(chan struct{}, 1),
		records: map[key]*record{}, changed: map[types.UID]bool{}}, nil
}

// Updates yields the UID of a pod of which a certificate was signed or refused.
func (m *Manager) Updates() <-chan types.UID { return m.updates }

// Bundle is the private key and the certificate chain of a projection, in PEM: of the
// volume of this name, at this place among its sources. The first call has them asked
// for. An error says what they wait for, or why there will be none.
func (m *Manager) Bundle(ctx context.Context, p *v1.Pod, volume string, source int) (privateKey, chain []byte, err error) {
	projection := projectionOf(p, volume, source)
	if projection == nil {
		return nil, nil, errors.New("the volume has no podCertificate there")
	}
	m.mu.Lock()
	k := key{p.UID, volume, source}
	r := m.records[k]
	if r == nil {
		r = &record{pod: p, source: projection, settled: make(chan struct{})}
		m.records[k] = r
	}
	m.mu.Unlock()
	m.poke()
	// Most signers answer at once: a pod that starts need not fail first.
	select {
	case <-r.settled:
	case <-time.After(patience):
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case r.refused != nil:
		return nil, nil, r.refused
	case r.bundle != nil:
		return r.bundle.key, r.bundle.chain, nil
	case r.fault != nil:
		return nil, nil, r.fault
	}
	return nil, nil, errors.New("credential bundle is not issued yet")
}

func projectionOf(p *v1.Pod, volume string, source int) *v1.PodCertificateProjection {
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if v.Name == volume && v.Projected != nil && source >= 0 && source < len(v.Projected.Sources) {
			return v.Projected.Sources[source].PodCertificate
		}
	}
	return nil
}

// Forget drops the pod's keys and certificates.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.records {
		if k.uid == uid {
			delete(m.records, k)
		}
	}
	delete(m.changed, uid)
}

func (m *Manager) poke() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}
