package syncloop

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/images"
)

// pulled holds the images that a container needs.
type pulled struct {
	images.Result // of the container
	// volumes holds the images of its image volumes, by volume name.
	volumes map[string]*runtimeapi.ImageSpec
}

// pull makes the container's image and those of its image volumes present.
func (j *job) pull(ctx context.Context) error {
	c := pod.Find(pod.AllContainers(&j.pod.Spec), j.op.Container)
	if c == nil {
		return fmt.Errorf("the pod has no container %q", j.op.Container)
	}
	secrets, err := j.pullSecrets(ctx)
	if err != nil {
		return err
	}
	found, err := j.loop.cfg.Images.Ensure(ctx, j.pod, c, secrets)
	if err != nil {
		return err
	}
	volumes, err := j.pullVolumes(ctx, c, secrets)
	if err != nil {
		return err
	}
	j.image = &pulled{found, volumes}
	return nil
}

// pullVolumes makes the images of the container's image volumes present; the runtime mounts them.
// If one cannot be pulled, the container waits with the same reason and message as for its own
// image.
func (j *job) pullVolumes(ctx context.Context, c *v1.Container, secrets []v1.Secret) (map[string]*runtimeapi.ImageSpec, error) {
	var out map[string]*runtimeapi.ImageSpec
	for i := range j.pod.Spec.Volumes {
		v := &j.pod.Spec.Volumes[i]
		if v.Image == nil || !mountsVolume(c, v.Name) {
			continue
		}
		// No container has this image, so its events are about the pod.
		found, err := j.loop.cfg.Images.Ensure(ctx, j.pod, &v1.Container{Image: v.Image.Reference, ImagePullPolicy: v.Image.PullPolicy}, secrets)
		if err != nil {
			return nil, err // it names the image
		}
		if out == nil {
			out = map[string]*runtimeapi.ImageSpec{}
		}
		out[v.Name] = &runtimeapi.ImageSpec{Image: found.Ref, UserSpecifiedImage: v.Image.Reference, Annotations: j.pod.Annotations}
	}
	return out, nil
}

func mountsVolume(c *v1.Container, name string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m v1.VolumeMount) bool { return m.Name == name })
}

// pullSecrets returns the imagePullSecrets that exist. Like a kubelet, it continues without the
// others.
func (j *job) pullSecrets(ctx context.Context) ([]v1.Secret, error) {
	var secrets []v1.Secret
	for _, ref := range j.pod.Spec.ImagePullSecrets {
		if ref.Name == "" {
			continue
		}
		s, err := j.loop.cfg.Objects.Secret(ctx, j.pod.Namespace, ref.Name)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err != nil {
			j.loop.event(j.pod, "", v1.EventTypeWarning, "FailedToRetrieveImagePullSecret",
				fmt.Sprintf("Unable to retrieve image pull secret %s; attempting to pull the image may not succeed.", ref.Name))
			continue
		}
		secrets = append(secrets, *s)
	}
	return secrets, nil
}
