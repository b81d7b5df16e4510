package render

import (
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// fromTrustBundles makes the file of a clusterTrustBundle projection: every certificate of the
// bundles once, in an order that no one may rely on.
func fromTrustBundles(p *v1.Pod, v *v1.ProjectedVolumeSource, t *v1.ClusterTrustBundleProjection, place int, s Sources) (Tree, error) {
	if t.Name == nil && t.SignerName == nil {
		return nil, errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
	}
	answer, ok := s.TrustBundles[place]
	if !ok {
		return nil, errors.New("the ClusterTrustBundles were not fetched")
	}
	switch {
	case apierrors.IsNotFound(answer.Err) && t.Name != nil && isTrue(t.Optional):
	case answer.Err != nil && t.Name != nil:
		return nil, fmt.Errorf("while getting ClusterTrustBundle: %w", answer.Err)
	case answer.Err != nil:
		return nil, fmt.Errorf("while listing ClusterTrustBundles: %w", answer.Err)
	case t.Name == nil && len(answer.PEM) == 0 && !isTrue(t.Optional):
		return nil, errors.New("combination of signerName and labelSelector matched zero ClusterTrustBundles")
	}
	return Tree{t.Path: private(p, v, anchors(answer.PEM))}, nil
}

// anchors returns the certificates of all bundles, each once, without any text between them.
func anchors(bundles []string) []byte {
	seen := map[string]bool{}
	for _, bundle := range bundles {
		for rest := []byte(bundle); ; {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			seen[string(block.Bytes)] = true
		}
	}
	var out strings.Builder
	for _, der := range slices.Sorted(maps.Keys(seen)) {
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(der)}))
	}
	return []byte(out.String())
}
