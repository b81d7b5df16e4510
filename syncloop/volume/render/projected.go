package render

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// fromProjected merges the sources in order; if two give one path, the later wins. It returns all
// faults together, so that they can be fixed at once.
func fromProjected(p *v1.Pod, v *v1.ProjectedVolumeSource, s Sources) (Tree, error) {
	tree := Tree{}
	var faults []error
	defaultMode := mode(v.DefaultMode)
	for i := range v.Sources {
		var part Tree
		var err error
		switch source := &v.Sources[i]; {
		case source.Secret != nil:
			part, err = fromSecret(source.Secret.Name, source.Secret.Items, defaultMode, isTrue(source.Secret.Optional), s)
		case source.ConfigMap != nil:
			part, err = fromConfigMap(source.ConfigMap.Name, source.ConfigMap.Items, defaultMode, isTrue(source.ConfigMap.Optional), s)
		case source.DownwardAPI != nil:
			part, err = fromDownwardAPI(p, source.DownwardAPI.Items, defaultMode, s)
		case source.ServiceAccountToken != nil:
			part, err = fromToken(p, v, source.ServiceAccountToken, s)
		case source.ClusterTrustBundle != nil:
			part, err = fromTrustBundles(p, v, source.ClusterTrustBundle, i, s)
		case source.PodCertificate != nil:
			part, err = fromCertificate(p, v, source.PodCertificate, i, s)
		default:
			// A source without a kind projects nothing; the API server drops unknown fields.
			continue
		}
		if err != nil {
			faults = append(faults, err)
			continue
		}
		for path, f := range part {
			tree[path] = f
		}
	}
	return tree, aggregate(faults)
}

// fromToken makes a token's file. A token is private to the pod's user if all containers run as the
// same one, or to its group by fsGroup (which later makes it 0640). Otherwise no owner can be named
// and the default mode applies.
func fromToken(p *v1.Pod, v *v1.ProjectedVolumeSource, t *v1.ServiceAccountTokenProjection, s Sources) (Tree, error) {
	answer, ok := s.Tokens[tokenKey(t)]
	if !ok {
		return nil, fmt.Errorf("token for audience %q was not fetched", t.Audience)
	}
	if answer.Err != nil {
		return nil, answer.Err
	}
	return Tree{t.Path: private(p, v, []byte(answer.Token))}, nil
}

// fromCertificate makes the files of a pod's certificate: key and chain in one file, or in one
// each. They are as private as a token.
func fromCertificate(p *v1.Pod, v *v1.ProjectedVolumeSource, c *v1.PodCertificateProjection, place int, s Sources) (Tree, error) {
	answer, ok := s.Certificates[place]
	if !ok {
		return nil, errors.New("the certificate was not asked for")
	}
	if answer.Err != nil {
		return nil, answer.Err
	}
	tree := Tree{}
	for path, data := range map[string][]byte{
		c.CredentialBundlePath: slices.Concat(answer.Key, answer.Chain), c.KeyPath: answer.Key, c.CertificateChainPath: answer.Chain,
	} {
		if path != "" {
			tree[path] = private(p, v, data)
		}
	}
	return tree, nil
}

// private is a file that only the pod's user may read; see fromToken.
func private(p *v1.Pod, v *v1.ProjectedVolumeSource, data []byte) File {
	f := File{Data: data, Mode: mode(v.DefaultMode), UID: -1, GID: -1}
	user := CommonUser(p)
	if user != nil {
		f.UID = *user
	}
	if user != nil || (p.Spec.SecurityContext != nil && p.Spec.SecurityContext.FSGroup != nil) {
		f.Mode = 0o600
	}
	return f
}

// CommonUser is the user that every container of the pod runs as; nil if one does not specify it or
// two differ.
func CommonUser(p *v1.Pod) *int64 {
	var podUser, common *int64
	if p.Spec.SecurityContext != nil {
		podUser = p.Spec.SecurityContext.RunAsUser
	}
	for c := range pod.AllContainers(&p.Spec) {
		user := podUser
		if sc := c.SecurityContext; sc != nil && sc.RunAsUser != nil {
			user = sc.RunAsUser
		}
		if user == nil || (common != nil && *common != *user) {
			return nil
		}
		common = user
	}
	return common
}

// aggregate is nil for no error, the error itself for one, and Faults for more.
func aggregate(list []error) error {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return Faults(list)
}

// Faults are several errors of one volume.
type Faults []error

// Error is a bracketed list, as in the kubelet.
func (f Faults) Error() string {
	var said []string
	for _, err := range f {
		if text := err.Error(); !slices.Contains(said, text) {
			said = append(said, text)
		}
	}
	if len(said) == 1 {
		return said[0]
	}
	return "[" + strings.Join(said, ", ") + "]"
}

// Unwrap lets errors.As find the errors within.
func (f Faults) Unwrap() []error { return f }

// IsUnsupported reports whether a volume failed because its kind is not supported, so that no retry
// helps.
func IsUnsupported(err error) bool {
	var u *UnsupportedError
	return errors.As(err, &u)
}
