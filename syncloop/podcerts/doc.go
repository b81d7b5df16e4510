// Package podcerts requests certificates for pods' podCertificate volumes, by the
// PodCertificateRequest API, and renews them (the kubelet's podcertificate manager).
//
// Each projection of a pod is one record:
//
//	           signed                  time to renew
//	asking ──────────────► issued ◄──────────────────► renewing
//	   │ denied or failed, for good                       │
//	   └───────────────────► refused ◄────────────────────┘
//
// A record that is asking has a key and a request, or the error of the last attempt to create one.
// A record that is renewing has those and the certificate in use. Nothing outlives this process:
// keys are in memory and in the volumes, and a new process requests new certificates. A request
// that the informer does not show ten minutes after its creation counts as deleted, and a new one
// is created.
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

	"github.com/bowline-k8s/bowline/notify"
)

// Config configures a Manager.
type Config struct {
	Client kubernetes.Interface
	// NodeName is the node's name; Node reads the node, whose UID a request names.
	NodeName string
	Node     func(context.Context) (*v1.Node, error)
	// ServiceAccount reads a pod's service account.
	ServiceAccount func(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
	// Event records on a pod that a request was refused, a renewal is late, or a certificate
	// expired. It must not block.
	Event func(p *v1.Pod, reason, message string)
}

const (
	// patience is how long Bundle waits for a certificate that was just requested.
	patience = 2 * time.Second
	// abandon is the age at which a request that the informer does not show counts as deleted;
	// overdue is how late a renewal may be before an event. jitter is added to abandon and to the
	// time of renewal.
	abandon, overdue, jitter = 10 * time.Minute, 10 * time.Minute, 5 * time.Minute
	// firstAgain is the pause after a failed attempt to create a request; it doubles up to
	// lastAgain.
	firstAgain, lastAgain = time.Second, time.Minute
	// rest is the least age at which a certificate is renewed, whatever its own times are; with a
	// clock that is ahead, the host would send requests without pause.
	rest = time.Minute
	// callTimeout bounds the API calls of one request.
	callTimeout = 10 * time.Second
	// lookAgain is how often step looks at all records, with or without a wake-up.
	lookAgain = time.Minute
)

// Manager keeps certificates. Its methods are safe for concurrent use.
type Manager struct {
	cfg     Config
	updates chan types.UID
	wake    notify.Signal // capacity 1: step has something to do
	turn    chan struct{} // capacity 1: held while a key is made, which occupies a CPU

	mu       sync.Mutex
	records  map[key]*record
	changed  map[types.UID]bool // pods to send on updates
	informer cache.SharedIndexInformer
	lister   certificateslisters.PodCertificateRequestLister
}

type key struct {
	uid    types.UID
	volume string
	source int // index among the volume's sources
}

// record is the state of one projection. Manager.mu guards its fields.
type record struct {
	pod    *v1.Pod
	source *v1.PodCertificateProjection
	// busy is set while a request is being created.
	busy    bool
	settled chan struct{} // closed at the first certificate or refusal

	request *request // in flight
	bundle  *bundle  // in use; nil: none yet
	refused error    // permanently
	refusal string   // denied or failed, if it is refused
	// fault is the error of the last attempt; again is when the next one is due, wait is the
	// current back-off.
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
	key, chain        []byte    // PEM
	renew, ends       time.Time // absolute, by the API
	rested            time.Time // rest is over, by either clock
	loggedLate, ended bool
}

// New returns a Manager; it starts nothing.
func New(c Config) (*Manager, error) {
	if c.Client == nil || c.NodeName == "" || c.Node == nil || c.ServiceAccount == nil || c.Event == nil {
		return nil, errors.New("podcerts: Client, NodeName, Node, ServiceAccount and Event are required")
	}
	return &Manager{cfg: c, updates: make(chan types.UID), wake: notify.New(), turn: make(chan struct{}, 1),
		records: map[key]*record{}, changed: map[types.UID]bool{}}, nil
}

// Updates returns the UIDs of pods whose certificate the signer has issued or refused.
func (m *Manager) Updates() <-chan types.UID { return m.updates }

// Bundle returns the private key and the certificate chain of a projection, in PEM: the one at
// index source of the named volume. The first call starts the request. An error names the
// pending step, or says why there will be no certificate.
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
	m.wake.Send()
	// Most signers answer at once; waiting briefly spares a starting pod a failure.
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

// State is the state of a projection, in the kubelet's words.
type State struct{ Signer, State string }

// States counts the projections by state.
func (m *Manager) States(now time.Time) map[State]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[State]int{}
	for _, r := range m.records {
		out[State{r.source.SignerName, r.state(now)}]++
	}
	return out
}

// state is the state of a record. The caller holds Manager.mu.
func (r *record) state(now time.Time) string {
	switch b := r.bundle; {
	case r.refused != nil:
		return r.refusal
	case b == nil:
		return "not_yet_issued"
	case now.After(b.ends):
		return "expired"
	case now.After(b.renew.Add(overdue)):
		return "overdue_for_refresh"
	}
	return "fresh"
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
