package nodecert

import (
	"context"
	"crypto/tls"
	"sync"
	"time"

	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/wall"
)

// rotation is a certificate manager that is recreated when the machine was suspended past the time
// of a renewal. The manager's timer does not run during a suspend, perhaps for weeks, and cannot be
// reset.
type rotation struct {
	make func() (certificate.Manager, error)
	now  func() time.Time // wall-clock time

	mu      sync.Mutex
	manager certificate.Manager
}

func newRotation(c *certificate.Config) (*rotation, error) {
	out := &rotation{make: func() (certificate.Manager, error) { return certificate.NewManager(c) }, now: wall.Now}
	var err error
	out.manager, err = out.make()
	return out, err
}

// Current is the current certificate; nil: there is none yet, or it has expired.
func (r *rotation) Current() *tls.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.manager.Current()
}

// renewalBegins is the fraction of a certificate's life after which the manager may renew it. It
// does so before 0.9.
const renewalBegins = 0.7

// Run requests certificates until ctx ends.
func (r *rotation) Run(ctx context.Context) error {
	tick := time.NewTicker(wall.Glance)
	defer tick.Stop()
	m := r.manager
	m.Start()
	defer func() { m.Stop() }()
	began, wallBegan := time.Now(), r.now()
	var last *tls.Certificate
	for {
		if c := m.Current(); c != nil && c.Leaf != nil {
			last = c // Current does not return an expired one
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if slept := r.now().Sub(wallBegan) - time.Since(began); slept <= wall.Glance || !renewable(last, r.now()) {
			continue
		}
		log := klog.FromContext(ctx)
		made, err := r.make() // it loads what the old one stored
		if err != nil {
			log.Error(err, "Failed to read the certificate to renew after a clock change, will retry")
			continue
		}
		log.Info("Rescheduled certificate renewal after a clock change", "until", last.Leaf.NotAfter)
		m.Stop() // its remaining goroutines end with its timer
		r.mu.Lock()
		r.manager, m = made, made
		r.mu.Unlock()
		m.Start()
		began, wallBegan, last = time.Now(), r.now(), nil
	}
}

// renewable reports whether a manager that starts now would renew the certificate, now or soon.
func renewable(c *tls.Certificate, now time.Time) bool {
	if c == nil {
		return false
	}
	life := c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)
	return now.After(c.Leaf.NotBefore.Add(time.Duration(float64(life) * renewalBegins)))
}
