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

// rotation is a certificate manager that is made again where the machine has slept beyond
// the time of a renewal: its timer for that stands still meanwhile, for weeks if need be,
// and no other can be set.
type rotation struct {
	make func() (certificate.Manager, error)
	now  func() time.Time // wall time

	mu      sync.Mutex
	manager certificate.Manager
}

func newRotation(c *certificate.Config) (*rotation, error) {
	out := &rotation{make: func() (certificate.Manager, error) { return certificate.NewManager(c) }, now: wall.Now}
	var err error
	out.manager, err = out.make()
	return out, err
}

// Current is the certificate of the moment; nil: there is none yet, or it has ended.
func (r *rotation) Current() *tls.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.manager.Current()
}

// renewalBegins is the part of a certificate's life after which the manager may renew it;
// it does so by nine tenths.
const renewalBegins = 0.7

// Run asks for certificates until ctx ends.
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
			last = c // one that has ended is not given any more
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
		made, err := r.make() // it reads what the one before has kept
		if err != nil {
			log.Error(err, "A certificate is to be renewed after a sleep of the machine, and what is kept of it cannot be read; the next look tries again")
			continue
		}
		log.Info("The machine has slept, or its clock was set: the certificate is renewed by the clock of now", "until", last.Leaf.NotAfter)
		m.Stop() // what is left of it ends with its timer
		r.mu.Lock()
		r.manager, m = made, made
		r.mu.Unlock()
		m.Start()
		began, wallBegan, last = time.Now(), r.now(), nil
	}
}

// renewable: a manager that begins now would renew it, now or soon.
func renewable(c *tls.Certificate, now time.Time) bool {
	if c == nil {
		return false
	}
	life := c.Leaf.NotAfter.Sub(c.Leaf.NotBefore)
	return now.After(c.Leaf.NotBefore.Add(time.Duration(float64(life) * renewalBegins)))
}
