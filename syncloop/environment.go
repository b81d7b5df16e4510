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

// environment resolves the container's environment. It fetches what the environment refers to;
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
	for _, name := range configMaps {
		cm, err := j.loop.cfg.Objects.ConfigMap(ctx, j.pod.Namespace, name)
		if err = present(err); err != nil {
			return nil, fmt.Errorf("configmap %q: %w", name, err)
		}
		if cm != nil {
			in.ConfigMaps[name] = cm
		}
	}
	for _, name := range secrets {
		s, err := j.loop.cfg.Objects.Secret(ctx, j.pod.Namespace, name)
		if err = present(err); err != nil {
			return nil, fmt.Errorf("secret %q: %w", name, err)
		}
		if s != nil {
			in.Secrets[name] = s
		}
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

// present drops "not found" errors: cri/spec decides whether the object may be missing.
func present(err error) error {
	var status apierrors.APIStatus
	if errors.As(err, &status) && apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
