package volume

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/syncloop/volume/render"
)

// trustBundles returns the PEMs for a projection. As for labels in general, a nil selector matches
// nothing and an empty one everything.
func (m *Manager) trustBundles(ctx context.Context, t *v1.ClusterTrustBundleProjection) ([]string, error) {
	if m.cfg.Trust == nil {
		return nil, &render.UnsupportedError{Type: "projected clusterTrustBundle"}
	}
	switch {
	case t.Name != nil:
		bundle, err := m.cfg.Trust.ClusterTrustBundle(ctx, *t.Name)
		if err != nil {
			return nil, err
		}
		return []string{bundle.Spec.TrustBundle}, nil
	case t.SignerName != nil:
		selector, err := metav1.LabelSelectorAsSelector(t.LabelSelector)
		if err != nil {
			return nil, fmt.Errorf("while parsing label selector: %w", err)
		}
		if t.LabelSelector == nil {
			return nil, nil
		}
		list, err := m.cfg.Trust.ClusterTrustBundles(ctx, *t.SignerName, selector)
		if err != nil {
			return nil, err
		}
		out := make([]string, len(list))
		for i := range list {
			out[i] = list[i].Spec.TrustBundle
		}
		return out, nil
	}
	return nil, nil // render reports what is missing
}
