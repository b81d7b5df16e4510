package volume

import (
	"context"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// anchors are a cluster's trust bundles.
type anchors map[string]string

func (a anchors) ClusterTrustBundle(_ context.Context, name string) (*certificatesv1.ClusterTrustBundle, error) {
	if pem, ok := a[name]; ok {
		return &certificatesv1.ClusterTrustBundle{Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: pem}}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "clustertrustbundles"}, name)
}

func (a anchors) ClusterTrustBundles(_ context.Context, signer string, selector labels.Selector) ([]certificatesv1.ClusterTrustBundle, error) {
	b, err := a.ClusterTrustBundle(context.Background(), signer+" "+selector.String())
	if err != nil {
		return nil, nil
	}
	return []certificatesv1.ClusterTrustBundle{*b}, nil
}

// TestTrustBundlesFollow: the next Refresh writes a changed bundle to the volume.
func TestTrustBundlesFollow(t *testing.T) {
	const one = "-----BEGIN CERTIFICATE-----\nb25l\n-----END CERTIFICATE-----\n"
	const two = "-----BEGIN CERTIFICATE-----\ndHdv\n-----END CERTIFICATE-----\n"
	h, c := newMemHost(), newCluster()
	trust := anchors{"roots": one, "example.com/s tier=gold": two}
	m, err := New(Config{Host: h, Objects: c, Tokens: c, Trust: trust, RootDir: "/root", Allocatable: func() v1.ResourceList { return nil }})
	testutil.Must(t, err)
	signer, selector := "example.com/s", &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "gold"}}
	source := func(path string, change func(*v1.ClusterTrustBundleProjection)) v1.VolumeProjection {
		b := &v1.ClusterTrustBundleProjection{Path: path, Optional: ptr(true)}
		change(b)
		return v1.VolumeProjection{ClusterTrustBundle: b}
	}
	p := testPod(named("ca", v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		source("name", func(b *v1.ClusterTrustBundleProjection) { b.Name = ptr("roots") }),
		source("signer", func(b *v1.ClusterTrustBundleProjection) { b.SignerName, b.LabelSelector = &signer, selector }),
		source("nothing", func(b *v1.ClusterTrustBundleProjection) { b.SignerName = &signer }),
	}}}))
	dir := prepare(t, m, p)["ca"].HostPath
	want := func(name, content string) {
		t.Helper()
		if got, ok := h.nodes[dir].tree[name]; !ok || string(got.Data) != content {
			t.Errorf("%s = %q", name, got.Data)
		}
	}
	want("name", one)
	want("signer", two)
	want("nothing", "")
	trust["roots"] = two
	testutil.Must(t, m.Refresh(t.Context(), p))
	want("name", two)

	// Without Trust, the volume's error says that it is not supported.
	other := newManager(t, newMemHost(), c)
	if _, err := other.Prepare(t.Context(), p); err == nil || !Failures(err)[0].Unsupported() {
		t.Errorf("err = %v", err)
	}
}
