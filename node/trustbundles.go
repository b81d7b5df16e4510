package node

import (
	"context"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	certificatesv1client "k8s.io/client-go/kubernetes/typed/certificates/v1"
)

// trustBundles reads the cluster's ClusterTrustBundles, which every node may read. It reads them
// for each pod that projects one, and does not watch them, because few pods do.
type trustBundles struct {
	client certificatesv1client.CertificatesV1Interface
}

func (t trustBundles) ClusterTrustBundle(ctx context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	return t.client.ClusterTrustBundles().Get(ctx, name, metav1.GetOptions{})
}

func (t trustBundles) ClusterTrustBundles(ctx context.Context, signer string, selector labels.Selector) ([]certificatesv1.ClusterTrustBundle, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	list, err := t.client.ClusterTrustBundles().List(ctx, metav1.ListOptions{LabelSelector: selector.String(),
		FieldSelector: fields.OneTermEqualSelector("spec.signerName", signer).String()})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
