package manifest

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// references names the first reference that needs the API server, or is empty.
func references(p *v1.Pod) string {
	s := &p.Spec
	switch {
	case s.ServiceAccountName != "":
		return "a service account (spec.serviceAccountName)"
	case len(s.ImagePullSecrets) > 0:
		return "secrets (spec.imagePullSecrets)"
	case len(s.ResourceClaims) > 0:
		return "resource claims (spec.resourceClaims)"
	}
	for c := range pod.Containers(s) {
		for _, e := range c.Env {
			switch {
			case e.ValueFrom == nil:
			case e.ValueFrom.SecretKeyRef != nil:
				return "secrets (env " + e.Name + " of container " + c.Name + ")"
			case e.ValueFrom.ConfigMapKeyRef != nil:
				return "configMaps (env " + e.Name + " of container " + c.Name + ")"
			}
		}
		for _, e := range c.EnvFrom {
			switch {
			case e.SecretRef != nil:
				return "secrets (envFrom of container " + c.Name + ")"
			case e.ConfigMapRef != nil:
				return "configMaps (envFrom of container " + c.Name + ")"
			}
		}
	}
	for i := range s.Volumes {
		if what := ofVolume(&s.Volumes[i].VolumeSource); what != "" {
			return what + " (volume " + s.Volumes[i].Name + ")"
		}
	}
	return ""
}

func ofVolume(v *v1.VolumeSource) string {
	const secrets = "secrets"
	switch {
	case v.ConfigMap != nil:
		return "configMaps"
	case v.Secret != nil, v.AzureFile != nil,
		v.CephFS != nil && v.CephFS.SecretRef != nil,
		v.Cinder != nil && v.Cinder.SecretRef != nil,
		v.FlexVolume != nil && v.FlexVolume.SecretRef != nil,
		v.ISCSI != nil && v.ISCSI.SecretRef != nil,
		v.RBD != nil && v.RBD.SecretRef != nil,
		v.ScaleIO != nil && v.ScaleIO.SecretRef != nil,
		v.StorageOS != nil && v.StorageOS.SecretRef != nil:
		return secrets
	case v.CSI != nil:
		return "CSI drivers"
	case v.Glusterfs != nil:
		return "endpoints"
	case v.PersistentVolumeClaim != nil, v.Ephemeral != nil:
		return "persistent volume claims"
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			switch {
			case s.ConfigMap != nil:
				return "configMaps"
			case s.Secret != nil:
				return secrets
			case s.ServiceAccountToken != nil:
				return "service account tokens"
			case s.ClusterTrustBundle != nil:
				return "cluster trust bundles"
			case s.PodCertificate != nil:
				return "pod certificates"
			}
		}
	}
	return ""
}
