package objects

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/pod"
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
	for c := range pod.AllContainers(&p.Spec) {
		for i := range c.EnvFrom {
			if r := c.EnvFrom[i].ConfigMapRef; r != nil {
				configMap(r.Name)
			}
			if r := c.EnvFrom[i].SecretRef; r != nil {
				secret(r.Name)
			}
		}
		for i := range c.Env {
			source := c.Env[i].ValueFrom
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
	return configMaps, secrets
}
