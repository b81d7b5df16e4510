// Package render turns a volume of a pod and the objects that it names into the files that the
// volume must hold. The package is pure: it reads and writes nothing, so the same input always gives
// the same tree.
package render

import (
	"io/fs"

	v1 "k8s.io/api/core/v1"
)

// DefaultMode is the API server's default of defaultMode for configMap, secret, downwardAPI and
// projected volumes.
const DefaultMode = v1.ConfigMapVolumeSourceDefaultMode

// Tree is the desired content of a volume, by clean slash-separated relative path.
type Tree map[string]File

// File is one file of a Tree.
type File struct {
	Data []byte
	Mode fs.FileMode // permission bits
	UID  int64       // owner; -1: root
	GID  int64       // group, of fsGroup; -1: root's
}

// TokenKey identifies one service account token of a volume.
type TokenKey struct {
	Audience string // empty: the API server's own
	// ExpirationSeconds is the requested life; 0 leaves it to the API server.
	ExpirationSeconds int64
}

// Needs are the objects that a volume needs. Names are in the pod's namespace and appear once each.
type Needs struct {
	ConfigMaps []string
	Secrets    []string
	Tokens     []TokenKey
	// TrustBundles are the clusterTrustBundle projections by their index among the volume's
	// sources.
	TrustBundles map[int]*v1.ClusterTrustBundleProjection
	// Certificates are the indexes of podCertificates among the volume's sources.
	Certificates []int
}

// ConfigMap is the result of reading one. Err is the API's; a NotFound is ignored if the source is
// optional.
type ConfigMap struct {
	Object *v1.ConfigMap
	Err    error
}

// Secret is the result of reading one; see ConfigMap.
type Secret struct {
	Object *v1.Secret
	Err    error
}

// Token is the result of requesting one.
type Token struct {
	Token string
	Err   error
}

// TrustBundles is the result of reading bundles: the PEM of each, none if nothing matches. Err is
// the API's; a NotFound is that of a bundle named by the projection.
type TrustBundles struct {
	PEM []string
	Err error
}

// Certificate is the result of requesting a pod's key and certificates, in PEM.
type Certificate struct {
	Key, Chain []byte
	Err        error
}

// Sources holds the results for all Needs, and what downward API fields refer to.
type Sources struct {
	ConfigMaps map[string]ConfigMap
	Secrets    map[string]Secret
	Tokens     map[TokenKey]Token
	// TrustBundles are by the index of the projection among the volume's sources.
	TrustBundles map[int]TrustBundles
	// Certificates are by the index of the projection.
	Certificates map[int]Certificate
	// Allocatable of the node stands in for a limit that a container does not set.
	Allocatable v1.ResourceList
}

// Is reports whether Render makes volumes of this kind.
func Is(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// NeedsOf returns the objects that the volume needs.
func NeedsOf(v *v1.Volume) Needs {
	var n Needs
	switch {
	case v.ConfigMap != nil:
		n.ConfigMaps = append(n.ConfigMaps, v.ConfigMap.Name)
	case v.Secret != nil:
		n.Secrets = append(n.Secrets, v.Secret.SecretName)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			switch s := &v.Projected.Sources[i]; {
			case s.ConfigMap != nil:
				n.ConfigMaps = appendNew(n.ConfigMaps, s.ConfigMap.Name)
			case s.Secret != nil:
				n.Secrets = appendNew(n.Secrets, s.Secret.Name)
			case s.ServiceAccountToken != nil:
				n.Tokens = appendNew(n.Tokens, tokenKey(s.ServiceAccountToken))
			case s.ClusterTrustBundle != nil:
				if n.TrustBundles == nil {
					n.TrustBundles = map[int]*v1.ClusterTrustBundleProjection{}
				}
				n.TrustBundles[i] = s.ClusterTrustBundle
			case s.PodCertificate != nil:
				n.Certificates = append(n.Certificates, i)
			}
		}
	}
	return n
}

func tokenKey(t *v1.ServiceAccountTokenProjection) TokenKey {
	k := TokenKey{Audience: t.Audience}
	if t.ExpirationSeconds != nil {
		k.ExpirationSeconds = *t.ExpirationSeconds
	}
	return k
}

func appendNew[T comparable](list []T, x T) []T {
	for _, have := range list {
		if have == x {
			return list
		}
	}
	return append(list, x)
}

// Render makes the content of a volume for which Is is true.
//
// Errors have the kubelet's wording, without the volume's name: a missing object is the API's own
// NotFound, a missing key "references non-existent ... key", a source of an unsupported kind an
// *UnsupportedError. The faults of a projected volume are returned together.
func Render(p *v1.Pod, v *v1.Volume, s Sources) (Tree, error) {
	var tree Tree
	var err error
	switch {
	case v.ConfigMap != nil:
		c := v.ConfigMap
		tree, err = fromConfigMap(c.Name, c.Items, mode(c.DefaultMode), isTrue(c.Optional), s)
	case v.Secret != nil:
		c := v.Secret
		tree, err = fromSecret(c.SecretName, c.Items, mode(c.DefaultMode), isTrue(c.Optional), s)
	case v.DownwardAPI != nil:
		tree, err = fromDownwardAPI(p, v.DownwardAPI.Items, mode(v.DownwardAPI.DefaultMode), s)
	case v.Projected != nil:
		tree, err = fromProjected(p, v.Projected, s)
	default:
		return nil, &UnsupportedError{Type: TypeOf(v)}
	}
	if err != nil {
		return nil, err
	}
	if tree, err = cleanPaths(tree); err != nil {
		return nil, err
	}
	if sc := p.Spec.SecurityContext; sc != nil && sc.FSGroup != nil {
		applyFSGroup(tree, *sc.FSGroup)
	}
	return tree, nil
}

// applyFSGroup gives every file to the group and makes it readable by it. This happens before the
// new content becomes visible, so no reader finds a file that its group cannot read. A token's mode
// 0600 thus becomes 0640.
func applyFSGroup(t Tree, gid int64) {
	for name, f := range t {
		f.GID = gid
		f.Mode |= 0o440
		t[name] = f
	}
}

func mode(m *int32) fs.FileMode {
	if m == nil {
		return fs.FileMode(DefaultMode)
	}
	return fs.FileMode(*m) & fs.ModePerm
}

func isTrue(b *bool) bool { return b != nil && *b }
