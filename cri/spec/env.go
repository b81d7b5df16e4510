package spec

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// EnvInput is the input of a container's environment. A ConfigMap or Secret that is not in its map
// does not exist.
type EnvInput struct {
	ConfigMaps map[string]*v1.ConfigMap // of the pod's namespace, by name
	Secrets    map[string]*v1.Secret
	Services   []*v1.Service // at least those of the pod's namespace and of default
	// Files has the content of EnvFiles, except those that could not be read.
	Files map[EnvFile][]byte

	FieldInput
}

// FieldInput is what fieldRef and resourceFieldRef need in addition to the pod.
type FieldInput struct {
	PodIPs   []string // primary first
	HostIPs  []string
	NodeName string // used if the pod has no nodeName
	// Allocatable of the node: the limits of containers that set none.
	Allocatable v1.ResourceList
}

// MissingError means that an object that the pod refers to, or a key of it, does not exist. The
// container waits with CreateContainerConfigError until it does.
type MissingError struct {
	Kind      string // "configmap" or "secret"
	Namespace string
	Name      string
	Key       string // empty if the object itself is missing
}

func (e *MissingError) Error() string {
	if e.Key == "" {
		return fmt.Sprintf("%s %q not found", e.Kind, e.Name)
	}
	kind := "ConfigMap"
	if e.Kind == "secret" {
		kind = "Secret"
	}
	return fmt.Sprintf("couldn't find key %s in %s %s/%s", e.Key, kind, e.Namespace, e.Name)
}

// Env resolves a container's environment: service variables, then envFrom, then env. A repeated
// name keeps its position and gets the later value. Values of env may refer to all earlier
// variables. If a configMap, a secret or a key is missing and not optional, Env returns a
// *MissingError.
func Env(p *v1.Pod, c *v1.Container, in EnvInput) ([]EnvVar, error) {
	e := &environment{pod: p, container: c, in: in, at: map[string]int{}}
	links := p.Spec.EnableServiceLinks == nil || *p.Spec.EnableServiceLinks
	for _, v := range ServiceEnv(in.Services, p.Namespace, links) {
		e.set(v.Name, v.Value)
	}
	for i := range c.EnvFrom {
		if err := e.from(&c.EnvFrom[i]); err != nil {
			return nil, err
		}
	}
	for i := range c.Env {
		if err := e.add(&c.Env[i]); err != nil {
			return nil, err
		}
	}
	return e.vars, nil
}

type environment struct {
	pod       *v1.Pod
	container *v1.Container
	in        EnvInput
	vars      []EnvVar
	at        map[string]int // name to index of vars
}

func (e *environment) set(name, value string) {
	if i, ok := e.at[name]; ok {
		e.vars[i].Value = value
		return
	}
	e.at[name] = len(e.vars)
	e.vars = append(e.vars, EnvVar{name, value})
}

func (e *environment) lookup(name string) (string, bool) {
	i, ok := e.at[name]
	if !ok {
		return "", false
	}
	return e.vars[i].Value, true
}

// from adds all keys of one object, sorted, so that equal objects give equal containers.
func (e *environment) from(source *v1.EnvFromSource) error {
	switch {
	case source.ConfigMapRef != nil:
		ref := source.ConfigMapRef
		object, ok := e.in.ConfigMaps[ref.Name]
		if !ok || object == nil {
			return e.missing("configmap", ref.Name, "", ref.Optional)
		}
		for _, key := range slices.Sorted(maps.Keys(object.Data)) {
			e.setNamed(source.Prefix+key, object.Data[key])
		}
	case source.SecretRef != nil:
		ref := source.SecretRef
		object, ok := e.in.Secrets[ref.Name]
		if !ok || object == nil {
			return e.missing("secret", ref.Name, "", ref.Optional)
		}
		for _, key := range slices.Sorted(maps.Keys(object.Data)) {
			e.setNamed(source.Prefix+key, string(object.Data[key]))
		}
	}
	return nil
}

// setNamed skips names that no process can have as a variable.
func (e *environment) setNamed(name, value string) {
	if name == "" || strings.ContainsAny(name, "=\x00") {
		return
	}
	e.set(name, value)
}

func (e *environment) missing(kind, name, key string, optional *bool) error {
	if optional != nil && *optional {
		return nil
	}
	return &MissingError{Kind: kind, Namespace: e.pod.Namespace, Name: name, Key: key}
}

func (e *environment) add(v *v1.EnvVar) error {
	if v.Value != "" || v.ValueFrom == nil {
		e.set(v.Name, Expand(v.Value, e.lookup))
		return nil
	}
	switch from := v.ValueFrom; {
	case from.FieldRef != nil:
		value, err := FieldValue(e.pod, from.FieldRef, e.in.FieldInput)
		if err != nil {
			return err
		}
		e.set(v.Name, value)
	case from.ResourceFieldRef != nil:
		value, err := ResourceValue(e.pod, e.container, from.ResourceFieldRef, e.in.Allocatable)
		if err != nil {
			return err
		}
		e.set(v.Name, value)
	case from.ConfigMapKeyRef != nil:
		ref := from.ConfigMapKeyRef
		object, ok := e.in.ConfigMaps[ref.Name]
		if !ok || object == nil {
			return e.missing("configmap", ref.Name, "", ref.Optional)
		}
		value, ok := object.Data[ref.Key]
		if !ok {
			return e.missing("configmap", ref.Name, ref.Key, ref.Optional)
		}
		e.set(v.Name, value)
	case from.SecretKeyRef != nil:
		ref := from.SecretKeyRef
		object, ok := e.in.Secrets[ref.Name]
		if !ok || object == nil {
			return e.missing("secret", ref.Name, "", ref.Optional)
		}
		value, ok := object.Data[ref.Key]
		if !ok {
			return e.missing("secret", ref.Name, ref.Key, ref.Optional)
		}
		e.set(v.Name, string(value))
	case from.FileKeyRef != nil:
		return e.file(v.Name, from.FileKeyRef)
	default:
		e.set(v.Name, "")
	}
	return nil
}

// ContainerEnvRefs returns the names of the configMaps and secrets that a container's environment
// refers to, sorted and without duplicates.
func ContainerEnvRefs(c *v1.Container) (configMaps, secrets []string) {
	for i := range c.EnvFrom {
		if ref := c.EnvFrom[i].ConfigMapRef; ref != nil {
			configMaps = append(configMaps, ref.Name)
		}
		if ref := c.EnvFrom[i].SecretRef; ref != nil {
			secrets = append(secrets, ref.Name)
		}
	}
	for i := range c.Env {
		from := c.Env[i].ValueFrom
		if from == nil {
			continue
		}
		if ref := from.ConfigMapKeyRef; ref != nil {
			configMaps = append(configMaps, ref.Name)
		}
		if ref := from.SecretKeyRef; ref != nil {
			secrets = append(secrets, ref.Name)
		}
	}
	return sortedOnce(configMaps), sortedOnce(secrets)
}

func sortedOnce(names []string) []string {
	slices.Sort(names)
	return slices.Compact(names)
}
