package objects

import (
	v1 "k8s.io/api/core/v1"
)

// References returns the configMaps and secrets that the pod names, each once: in volumes,
// environments, pull secrets and CSI volumes. The Node authorizer lets the pod's node read them.
func References(p *v1.Pod) (configMaps, secrets []string) {
	cm, sec := map[string]bool{}, map[string]bool{}
	add := func(list *[]string, seen map[string]bool, name string) {
		if name != "" && !seen[name] {
			seen[name] = true
			*list = append(*list, name)
		}
	}
	configMap := func(name string) { add(&configMaps, cm, name) }
	secret := func(name string) { add(&secrets, sec, name) }

	for i := range p.Spec.ImagePullSecrets {
		secret(p.Spec.ImagePullSecrets[i].Name)
	}
	for i := range p.Spec.Volumes {
		switch v := &p.Spec.Volumes[i]; {
		case v.ConfigMap != nil:
			configMap(v.ConfigMap.Name)
		case v.Secret != nil:
			secret(v.Secret.SecretName)
		case v.CSI != nil && v.CSI.NodePublishSecretRef != nil:
			secret(v.CSI.NodePublishSecretRef.Name)
		case v.Projected != nil:
			for j := range v.Projected.Sources {
				if s := v.Projected.Sources[j].ConfigMap; s != nil {
					configMap(s.Name)
				}
				if s := v.Projected.Sources[j].Secret; s != nil {
					secret(s.Name)
				}
			}
		}
	}
	env := func(vars []v1.EnvVar, from []v1.EnvFromSource) {
		for i := range from {
			if r := from[i].ConfigMapRef; r != nil {
				configMap(r.Name)
			}
			if r := from[i].SecretRef; r != nil {
				secret(r.Name)
			}
		}
		for i := range vars {
			source := vars[i].ValueFrom
			if source == nil {
				continue
			}
			if r := source.ConfigMapKeyRef; r != nil {
				configMap(r.Name)
			}
			if r := source.SecretKeyRef; r != nil {
				secret(r.Name)
			}
		}
	}
	for i := range p.Spec.InitContainers {
		env(p.Spec.InitContainers[i].Env, p.Spec.InitContainers[i].EnvFrom)
	}
	for i := range p.Spec.Containers {
		env(p.Spec.Containers[i].Env, p.Spec.Containers[i].EnvFrom)
	}
	for i := range p.Spec.EphemeralContainers {
		env(p.Spec.EphemeralContainers[i].Env, p.Spec.EphemeralContainers[i].EnvFrom)
	}
	return configMaps, secrets
}
