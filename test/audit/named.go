package audit

import (
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// reference is an object that a node may read because one of its pods names it, or the pod itself.
type reference struct {
	node, resource string
	object         types.NamespacedName
}

// named returns all references of the pods, and when the pods came to their node and left it.
func (c *Cluster) named() (map[reference]bool, map[reference][]span) {
	all, moments := map[reference]bool{}, map[reference][]span{}
	for _, p := range c.Pods {
		if p.Spec.NodeName == "" {
			continue
		}
		var spans []span
		for _, cond := range p.Status.Conditions {
			if cond.Type == v1.PodScheduled && cond.Status == v1.ConditionTrue {
				spans = append(spans, span{cond.LastTransitionTime.Time, cond.LastTransitionTime.Add(behind)})
			}
		}
		if d, grace := p.DeletionTimestamp, p.DeletionGracePeriodSeconds; d != nil && grace != nil {
			spans = append(spans, span{d.Add(-time.Duration(*grace) * time.Second), d.Add(behind)})
		}
		add := func(resource, name string) {
			if name == "" {
				return
			}
			r := reference{p.Spec.NodeName, resource, types.NamespacedName{Namespace: p.Namespace, Name: name}}
			all[r] = true
			for _, one := range spans {
				if !slices.Contains(moments[r], one) {
					moments[r] = append(moments[r], one)
				}
			}
		}
		add("pods", p.Name)
		add(tokens, p.Spec.ServiceAccountName)
		for _, s := range p.Spec.ImagePullSecrets {
			add("secrets", s.Name)
		}
		for i := range p.Spec.Volumes {
			ofVolume(&p.Spec.Volumes[i], add)
		}
		for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
			for i := range list {
				ofEnvironment(list[i].EnvFrom, list[i].Env, add)
			}
		}
		for i := range p.Spec.EphemeralContainers {
			ofEnvironment(p.Spec.EphemeralContainers[i].EnvFrom, p.Spec.EphemeralContainers[i].Env, add)
		}
	}
	return all, moments
}

func ofVolume(v *v1.Volume, add func(resource, name string)) {
	if v.Secret != nil {
		add("secrets", v.Secret.SecretName)
	}
	if v.ConfigMap != nil {
		add("configmaps", v.ConfigMap.Name)
	}
	if v.Projected == nil {
		return
	}
	for _, s := range v.Projected.Sources {
		if s.Secret != nil {
			add("secrets", s.Secret.Name)
		}
		if s.ConfigMap != nil {
			add("configmaps", s.ConfigMap.Name)
		}
	}
}

func ofEnvironment(from []v1.EnvFromSource, env []v1.EnvVar, add func(resource, name string)) {
	for _, f := range from {
		if f.SecretRef != nil {
			add("secrets", f.SecretRef.Name)
		}
		if f.ConfigMapRef != nil {
			add("configmaps", f.ConfigMapRef.Name)
		}
	}
	for _, e := range env {
		if e.ValueFrom == nil {
			continue
		}
		if r := e.ValueFrom.SecretKeyRef; r != nil {
			add("secrets", r.Name)
		}
		if r := e.ValueFrom.ConfigMapKeyRef; r != nil {
			add("configmaps", r.Name)
		}
	}
}
