// Package render is PURE: it turns a volume of a pod and the objects that the
// volume names into the files that the volume must hold. It reads nothing and
// writes nothing, so the same input always gives the same tree.
package render

import (
	"io/fs"

	v1 "k8s.io/api/core/v1"
)

// DefaultMode is what the API server fills in for defaultMode of configMap,
// secret, downwardAPI and projected volumes.
const DefaultMode = v1.ConfigMapVolumeSourceDefaultMode

// Tree is the wanted content of a volume, by clean slash-separated relative path.
type Tree map[string]File

// File is one file of a Tree.
type File struct {
	Data []byte
	Mode fs.FileMode // permission bits
	UID  int64       // owner; -1: root
	GID  int64       // group, of fsGroup; -1: root's
}

// TokenKey names one service account token of a volume.
type TokenKey struct {
	Audience string // empty: the API server's own
	// ExpirationSeconds is the wanted life; 0 leaves it to the API server.
	ExpirationSeconds int64
}

// Needs are the objects a volume is made of. Names are in the pod's namespace
// and appear once each.
type Needs struct {
	ConfigMaps []string
	Secrets    []string
	Tokens     []TokenKey
	// TrustBundles are the projections that ask for them, by their place among the
	// volume's sources.
	TrustBundles map[int]*v1.ClusterTrustBundleProjection
	// Certificates are the places of podCertificates among the volume's sources.
	Certificates []int
}

// ConfigMap is the answer to a request for one. Err is as the API says it:
// a NotFound is forgiven where the source is optional.
type ConfigMap struct {
	Object *v1.ConfigMap
	Err    error
}

// Secret is the answer to a request for one; see ConfigMap.
type Secret struct {
	Object *v1.Secret
	Err    error
}

// Token is the answer to a request for one.
type Token struct {
	Token string
	Err   error
}

// TrustBundles is the answer to a request for some: the PEM of each, none where
// nothing matches. Err is as the API says it: a NotFound is of the one that was
// named.
type TrustBundles struct {
	PEM []string
	Err error
}

// Certificate is the answer to a request for a pod's key and its certificates, in PEM.
type Certificate struct {
	Key, Chain []byte
	Err        error
}

// Sources holds the answers to all Needs, and what downward API fields refer to.
type Sources struct {
	ConfigMaps map[string]ConfigMap
	Secrets    map[string]Secret
	Tokens     map[TokenKey]Token
	// TrustBundles by the place of what asks for them among the volume's sources.
	TrustBundles map[int]TrustBundles
	// Certificates by the place of what asks for them.
	Certificates map[int]Certificate
	// Allocatable of the node stands in for a limit that a container does not set.
	Allocatable v1.ResourceList
}

// Is tells whether the volume is of a kind that Render makes.
func Is(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// NeedsOf tells which objects the volume is made of.
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
// Errors are the kubelet's sentences, without the volume's name: a missing
// object is the API's own NotFound, a missing key "references non-existent ...
// key", a source of a kind that is not supported an *UnsupportedError. Several
// faults of one projected volume come in one error.
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

// applyFSGroup gives every file to the group, readable by it, before the volume
// is flipped: no reader ever meets a file that its group cannot read. The mode
// of a token so becomes 0640 out of 0600 and the group's read bit.
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
