package syncloop

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/cri/spec"
	"github.com/bowline-k8s/bowline/host"
)

// environment resolves the container's environment. It fetches the objects that the environment refers to;
// cri/spec computes the variables.
func (j *job) environment(ctx context.Context, c *v1.Container) ([]spec.EnvVar, error) {
	in := spec.EnvInput{
		ConfigMaps: map[string]*v1.ConfigMap{}, Secrets: map[string]*v1.Secret{},
		FieldInput: spec.FieldInput{
			PodIPs: j.podIPs, HostIPs: j.loop.cfg.Machine().HostIPs,
			NodeName: j.loop.cfg.NodeName, Allocatable: j.loop.cfg.Allocatable(),
		},
	}
	// A cluster may have thousands of services; only those of these namespaces concern the pod.
	for _, namespace := range slices.Compact([]string{j.pod.Namespace, v1.NamespaceDefault}) {
		services, err := j.loop.cfg.Services.Services(namespace).List(labels.Everything())
		if err != nil {
			return nil, fmt.Errorf("list services of namespace %q: %w", namespace, err)
		}
		in.Services = append(in.Services, services...)
	}
	configMaps, secrets := spec.ContainerEnvRefs(c)
	if err := fetch(ctx, in.ConfigMaps, "configmap", j.pod.Namespace, configMaps, j.loop.cfg.Objects.ConfigMap); err != nil {
		return nil, err
	}
	if err := fetch(ctx, in.Secrets, "secret", j.pod.Namespace, secrets, j.loop.cfg.Objects.Secret); err != nil {
		return nil, err
	}
	for _, f := range spec.EnvFiles(c) {
		data, err := j.loop.cfg.Volumes.EnvFile(ctx, j.pod.UID, f.Volume, f.Path)
		if ctx.Err() != nil || errors.Is(err, host.ErrUnreachable) {
			return nil, err
		}
		if err != nil { // cri/spec reports the missing variables; only this line says what is wrong with the file
			klog.FromContext(ctx).Error(err, "Failed to read an environment file", "container", c.Name)
			continue
		}
		if in.Files == nil {
			in.Files = map[spec.EnvFile][]byte{}
		}
		in.Files[f] = data
	}
	return spec.Env(j.pod, c, in)
}

// fetch gets the objects of these names that exist: cri/spec decides whether one may be missing.
func fetch[T any](ctx context.Context, into map[string]*T, kind, namespace string, names []string,
	get func(ctx context.Context, namespace, name string) (*T, error)) error {
	for _, name := range names {
		switch object, err := get(ctx, namespace, name); {
		case err == nil:
			into[name] = object
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("%s %q: %w", kind, name, err)
		}
	}
	return nil
}
