package render

import (
	"encoding/pem"
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func certificate(text string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(text)}))
}

func TestTrustBundles(t *testing.T) {
	missing := apierrors.NewNotFound(schema.GroupResource{Resource: "clustertrustbundles"}, "roots")
	name, signer, yes := ptr("roots"), ptr("example.com/signer"), ptr(true)
	for what, c := range map[string]struct {
		projection v1.ClusterTrustBundleProjection
		answer     TrustBundles
		want       string // the file, or "error: " and words
	}{
		"each certificate once, and nothing else": {v1.ClusterTrustBundleProjection{SignerName: signer},
			TrustBundles{PEM: []string{"note\n" + certificate("b") + certificate("a"), certificate("a") + "rest"}}, certificate("a") + certificate("b")},
		"by name":                {v1.ClusterTrustBundleProjection{Name: name}, TrustBundles{PEM: []string{certificate("a")}}, certificate("a")},
		"absent":                 {v1.ClusterTrustBundleProjection{Name: name}, TrustBundles{Err: missing}, "error: while getting ClusterTrustBundle"},
		"absent, and optional":   {v1.ClusterTrustBundleProjection{Name: name, Optional: yes}, TrustBundles{Err: missing}, ""},
		"none of the signer":     {v1.ClusterTrustBundleProjection{SignerName: signer}, TrustBundles{}, "error: combination of signerName and labelSelector matched zero"},
		"none, and optional":     {v1.ClusterTrustBundleProjection{SignerName: signer, Optional: yes}, TrustBundles{}, ""},
		"no answer is no answer": {v1.ClusterTrustBundleProjection{Name: name, Optional: yes}, TrustBundles{Err: errors.New("silent")}, "error: while getting ClusterTrustBundle: silent"},
		"nor for a signer":       {v1.ClusterTrustBundleProjection{SignerName: signer, Optional: yes}, TrustBundles{Err: errors.New("silent")}, "error: while listing ClusterTrustBundles: silent"},
	} {
		t.Run(what, func(t *testing.T) {
			c.projection.Path = "ca.pem"
			v := &v1.Volume{VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{ClusterTrustBundle: &c.projection}}}}}
			if needs := NeedsOf(v).TrustBundles; len(needs) != 1 || needs[0] != &c.projection {
				t.Errorf("needs %v", needs)
			}
			tree, err := Render(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}, v, Sources{TrustBundles: map[int]TrustBundles{0: c.answer}})
			if words, ok := strings.CutPrefix(c.want, "error: "); ok {
				if err == nil || !strings.Contains(err.Error(), words) {
					t.Errorf("err = %v", err)
				}
				return
			}
			if f, ok := tree["ca.pem"]; err != nil || !ok || string(f.Data) != c.want {
				t.Errorf("%q, %v", f.Data, err)
			}
		})
	}
}
