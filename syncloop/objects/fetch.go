package objects

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Strategy is how a manager learns the content of its objects. The values are those of the
// kubelet's configMapAndSecretChangeDetectionStrategy.
type Strategy string

// The strategies; the package comment describes them.
const (
	Watch Strategy = "Watch"
	Cache Strategy = "Cache"
	Get   Strategy = "Get"
)

// defaultTTL is how old an answer may be if the cluster does not say. Its controller manager sets
// the age on each node (node.alpha.kubernetes.io/ttl), longer in larger clusters.
const defaultTTL = time.Minute

// cached returns the last answer, or a new one if that is too old. While the API server does not
// answer, pods that were registered before keep the last known object. A pod registered since then
// waits for a new answer, and so does one whose object was missing.
func (it *item) cached(ctx context.Context, m *Manager) (object, error) {
	select {
	case it.turn <- struct{}{}:
		defer func() { <-it.turn }()
	case <-ctx.Done():
		return nil, it.notAsked(ctx.Err())
	}
	it.mu.Lock()
	o := it.object
	good := o != nil && !it.outdated
	fresh := good && (isImmutable(o) || time.Since(it.asked) < m.age())
	it.outdated = false // until another pod registers
	it.mu.Unlock()
	if fresh {
		return o, nil
	}

	asked := time.Now()
	taken := false
	if good { // the API server's watch cache will do
		answer, err := it.ask(ctx, m, metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			return o, nil
		}
		taken = it.put(m, answer)
	}
	if !taken { // nothing is known, or the watch cache is older than what is known
		answer, err := it.ask(ctx, m, metav1.GetOptions{})
		switch {
		case err != nil && good:
			return o, nil
		case err != nil:
			it.outdate()
			return nil, it.notAsked(err)
		}
		it.doubt() // the store decides, as it may have been restored
		it.put(m, answer)
	}
	it.mu.Lock()
	it.asked = asked
	it.mu.Unlock()
	return it.read(), nil
}

// ask is get, repeated while it is forbidden: the Node authorizer learns of a new pod a moment
// after us.
func (it *item) ask(ctx context.Context, m *Manager, options metav1.GetOptions) (o object, err error) {
	_ = retry.DelayFunc().Until(ctx, true, true, func(ctx context.Context) (bool, error) {
		o, err = it.get(ctx, m, options)
		return !apierrors.IsForbidden(err), nil
	})
	return o, err
}

func (it *item) notAsked(err error) error {
	return fmt.Errorf("read %s %s/%s: %w", it.key.kind, it.key.namespace, it.key.name, err)
}

// outdate forces a new request for the object, however recent the last answer is.
func (it *item) outdate() {
	it.mu.Lock()
	defer it.mu.Unlock()
	it.outdated = true
}

// age is how old an answer may be.
func (m *Manager) age() time.Duration {
	if ttl, ok := m.ttl(); ok {
		return ttl
	}
	return defaultTTL
}
