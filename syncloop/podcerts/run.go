package podcerts

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	certificatesinformers "k8s.io/client-go/informers/certificates/v1"
	certificateslisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/wall"
)

// Run creates requests, follows their outcome, and sends Updates, until ctx ends.
func (m *Manager) Run(ctx context.Context) error {
	var calls sync.WaitGroup
	defer calls.Wait()
	for {
		next := m.step(ctx, &calls, time.Now())
		timer := time.NewTimer(wall.Until(next, time.Now()))
		uid, out := m.nextUpdate()
		select {
		case out <- uid:
			m.sent(uid)
		case <-timer.C:
		case <-m.wake:
		case <-ctx.Done():
			timer.Stop()
			return nil
		}
		timer.Stop()
	}
}

// nextUpdate returns a pod to send on updates; out is nil if there is none.
func (m *Manager) nextUpdate() (uid types.UID, out chan<- types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for uid := range m.changed {
		return uid, m.updates
	}
	return "", nil
}

// sent forgets a pod that was sent on updates.
func (m *Manager) sent(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.changed, uid)
}

// step looks at every record once, and returns when the next look is due.
func (m *Manager) step(ctx context.Context, calls *sync.WaitGroup, now time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	next := now.Add(lookAgain)
	if len(m.records) == 0 {
		return next
	}
	if m.informer == nil {
		m.watch(ctx, calls)
	}
	for k, r := range m.records {
		if r.busy || r.refused != nil {
			continue
		}
		if r.request != nil {
			m.look(k, r, now)
		}
		if r.bundle != nil {
			m.warn(r, now)
		}
		due := r.due(now)
		switch {
		case r.request != nil, r.refused != nil:
			continue
		case due.After(now):
			if due.Before(next) {
				next = due
			}
			continue
		}
		r.busy = true
		calls.Go(func() { m.ask(ctx, r) })
	}
	return next
}

// due is when to request a certificate for the record, or a time before now. A renewal is due by
// the wall clock, a retry by whichever clock comes first.
func (r *record) due(now time.Time) time.Time {
	var due time.Time
	if !wall.Passed(r.again, now) {
		due = r.again
	}
	if b := r.bundle; b != nil {
		at := b.renew
		if !at.After(now) && !wall.Passed(b.rested, now) {
			at = b.rested
		}
		if at.After(now) && at.After(due) {
			due = at
		}
	}
	return due
}

// watch starts an informer for the node's requests. It starts with the first record, as few pods
// have any.
func (m *Manager) watch(ctx context.Context, calls *sync.WaitGroup) {
	m.informer = certificatesinformers.NewFilteredPodCertificateRequestInformer(m.cfg.Client, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", m.cfg.NodeName).String()
		})
	m.lister = certificateslisters.NewPodCertificateRequestLister(m.informer.GetIndexer())
	poke := func(any) { m.wake.Send() }
	if _, err := m.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: poke, UpdateFunc: func(any, any) { m.wake.Send() }, DeleteFunc: poke,
	}); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to watch PodCertificateRequests; polling every minute")
	}
	calls.Go(func() { m.informer.RunWithContext(ctx) })
}

// look checks the outcome of a request. The caller holds mu.
func (m *Manager) look(k key, r *record, now time.Time) {
	found, err := m.lister.PodCertificateRequests(r.pod.Namespace).Get(r.request.name)
	if err != nil {
		if apierrors.IsNotFound(err) && wall.Passed(r.request.abandon, now) {
			r.fault = fmt.Errorf("PodCertificateRequest %s/%s appears to have been deleted", r.pod.Namespace, r.request.name)
			r.request = nil
		}
		return
	}
	for _, c := range found.Status.Conditions {
		switch c.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed:
			what := "denied"
			if c.Type == certificatesv1.PodCertificateRequestConditionTypeFailed {
				what = "failed"
			}
			r.refusal = what
			r.refused = fmt.Errorf("PodCertificateRequest was permanently %s: reason=%q message=%q", what, c.Reason, c.Message)
			m.cfg.Event(r.pod, c.Type, fmt.Sprintf("PodCertificateRequest %s/%s: %s: reason=%q, message=%q", found.Namespace, found.Name, what, c.Reason, c.Message))
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			r.bundle = bundleOf(r.request.key, found, now)
			r.fault, r.again, r.wait = nil, time.Time{}, 0
		default:
			continue
		}
		r.request = nil
		m.changed[k.uid] = true
		select {
		case <-r.settled:
		default:
			close(r.settled)
		}
		return
	}
}

func bundleOf(privateKey []byte, found *certificatesv1.PodCertificateRequest, now time.Time) *bundle {
	rested := now.Add(rest)
	now = now.Round(0) // a certificate's times are wall clock times
	b := &bundle{rested: rested, key: privateKey, chain: certificates(found.Status.CertificateChain), renew: now, ends: now}
	if t := found.Status.NotAfter; t != nil {
		b.ends = t.Round(0)
	}
	if t := found.Status.BeginRefreshAt; t != nil {
		b.renew = t.Round(0).Add(rand.N(jitter))
	}
	if b.renew.After(b.ends) {
		b.renew = b.ends
	}
	return b
}

// warn records, once each, an event for a late renewal and for an expired certificate. The caller
// holds mu.
func (m *Manager) warn(r *record, now time.Time) {
	if b := r.bundle; now.After(b.renew.Add(overdue)) && wall.Passed(b.rested.Add(overdue), now) && !b.loggedLate {
		b.loggedLate = true
		m.cfg.Event(r.pod, "CertificateOverdueForRefresh", "PodCertificate refresh overdue")
	}
	if b := r.bundle; now.After(b.ends) && !b.ended {
		b.ended = true
		m.cfg.Event(r.pod, "CertificateExpired", "PodCertificate expired")
	}
}

// ask creates a request with a new key.
func (m *Manager) ask(ctx context.Context, r *record) {
	made, err := m.create(ctx, r)
	m.mu.Lock()
	r.busy = false
	if err == nil {
		r.request, r.fault, r.again, r.wait = made, nil, time.Time{}, 0
	} else if ctx.Err() == nil {
		r.wait = min(max(2*r.wait, firstAgain), lastAgain) // not a wait.Backoff: a record starts without a pause
		r.again, r.fault = time.Now().Add(r.wait), err
		klog.FromContext(ctx).Error(err, "Failed to request a pod's certificate, will retry", "pod", klog.KObj(r.pod), "podUID", r.pod.UID, "after", r.wait)
	}
	m.mu.Unlock()
	m.wake.Send()
}

func (m *Manager) create(ctx context.Context, r *record) (*request, error) {
	privateKey, proof, err := m.makeKey(ctx, r.source.KeyType)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout) // begins after the key is made, which may take seconds
	defer cancel()
	p := r.pod
	account, err := m.cfg.ServiceAccount(ctx, p.Namespace, p.Spec.ServiceAccountName)
	if err != nil {
		return nil, fmt.Errorf("read service account %s/%s: %w", p.Namespace, p.Spec.ServiceAccountName, err)
	}
	node, err := m.cfg.Node(ctx)
	if err != nil {
		return nil, fmt.Errorf("read node %s: %w", m.cfg.NodeName, err)
	}
	made, err := m.cfg.Client.CertificatesV1().PodCertificateRequests(p.Namespace).Create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: p.Name, UID: p.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: r.source.SignerName,
			PodName:    p.Name, PodUID: p.UID,
			ServiceAccountName: account.Name, ServiceAccountUID: account.UID,
			NodeName: types.NodeName(m.cfg.NodeName), NodeUID: node.UID,
			MaxExpirationSeconds:      r.source.MaxExpirationSeconds,
			StubPKCS10Request:         proof,
			UnverifiedUserAnnotations: r.source.UserAnnotations,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create a PodCertificateRequest: %w", err)
	}
	return &request{key: privateKey, name: made.Name, abandon: time.Now().Add(abandon + rand.N(jitter))}, nil
}

// makeKey makes one key at a time, as an RSA key takes seconds of CPU time.
func (m *Manager) makeKey(ctx context.Context, kind string) (privateKey, proof []byte, err error) {
	select {
	case m.turn <- struct{}{}:
		defer func() { <-m.turn }()
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if privateKey, proof, err = newKey(kind); err != nil {
		return nil, nil, fmt.Errorf("make a key of type %q: %w", kind, err)
	}
	return privateKey, proof, nil
}
