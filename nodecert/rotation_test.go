package nodecert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/util/certificate"

	"github.com/bowline-k8s/bowline/wall"
)

// managers creates one after another, each with a certificate for 100 hours.
type managers struct {
	mu     sync.Mutex
	events []string
	made   int
	fail   error
	ended  atomic.Bool // the certificate of the first one has expired
}

type manager struct {
	certificate.Manager
	of   *managers
	name string
	cert *tls.Certificate
}

func (m *managers) make() (certificate.Manager, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fail != nil {
		return nil, m.fail
	}
	out := &manager{of: m, name: string(rune('a' + m.made)), cert: &tls.Certificate{Leaf: &x509.Certificate{
		NotBefore: time.Now(), NotAfter: time.Now().Add(100 * time.Hour)}}}
	m.made++
	return out, nil
}

func (m *managers) note(event string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.events = append(m.events, event)
}

func (m *managers) had() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.events)
}

func (m *manager) Start() { m.of.note("start " + m.name) }
func (m *manager) Stop()  { m.of.note("stop " + m.name) }
func (m *manager) Current() *tls.Certificate {
	if m.name == "a" && m.of.ended.Load() {
		return nil
	}
	return m.cert
}

func TestRenewalAfterASleep(t *testing.T) {
	for name, c := range map[string]struct {
		lived, slept time.Duration
		ended        bool
		fail         error
		want         []string
	}{
		"no sleep":                          {95 * time.Hour, 0, false, nil, []string{"start a"}},
		"a short one":                       {95 * time.Hour, 30 * time.Second, false, nil, []string{"start a"}},
		"not due yet":                       {time.Hour, 60 * time.Hour, false, nil, []string{"start a"}},
		"due":                               {time.Hour, 75 * time.Hour, false, nil, []string{"start a", "stop a", "start b"}},
		"due, of two sleeps and a long day": {60 * time.Hour, 15 * time.Hour, false, nil, []string{"start a", "stop a", "start b"}},
		"over":                              {time.Hour, 200 * time.Hour, true, nil, []string{"start a", "stop a", "start b"}},
		"cannot be made":                    {time.Hour, 75 * time.Hour, false, errors.New("no such file"), []string{"start a"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				all := &managers{}
				var slept atomic.Int64
				r := &rotation{make: all.make, now: func() time.Time { return wall.Now().Add(time.Duration(slept.Load())) }}
				r.manager, _ = all.make()
				all.fail = c.fail
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { _ = r.Run(ctx) })
				time.Sleep(c.lived)
				slept.Store(int64(c.slept))
				all.ended.Store(c.ended)
				time.Sleep(wall.Glance + time.Second)
				synctest.Wait()
				if got := all.had(); !slices.Equal(got, c.want) {
					t.Errorf("%q, want %q", got, c.want)
				}
				if (r.Current() == nil) != (c.ended && len(c.want) == 1) {
					t.Errorf("the certificate is %v", r.Current())
				}
				time.Sleep(time.Hour)
				if got := all.had(); !slices.Equal(got, c.want) {
					t.Errorf("an hour later %q, want %q", got, c.want)
				}
				cancel()
				running.Wait()
				if got := all.had(); got[len(got)-1][:4] != "stop" {
					t.Errorf("at the end %q", got)
				}
			})
		})
	}
}
