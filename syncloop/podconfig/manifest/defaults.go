package manifest

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	"github.com/bowline-k8s/bowline/pod"
)

// setDefaults sets the API server's defaults for the fields that a node reads. client-go has no
// defaulting.
func setDefaults(p *v1.Pod) {
	s := &p.Spec
	if s.ServiceAccountName == "" {
		s.ServiceAccountName = s.DeprecatedServiceAccount
	}
	s.DeprecatedServiceAccount = s.ServiceAccountName
	orDefault(&s.DNSPolicy, v1.DNSClusterFirst)
	orDefault(&s.RestartPolicy, v1.RestartPolicyAlways)
	orDefault(&s.SchedulerName, v1.DefaultSchedulerName)
	orPointer(&s.EnableServiceLinks, v1.DefaultEnableServiceLinks)
	orPointer(&s.SecurityContext, v1.PodSecurityContext{})
	orPointer(&s.TerminationGracePeriodSeconds, v1.DefaultTerminationGracePeriodSeconds)
	if *s.TerminationGracePeriodSeconds < 0 {
		*s.TerminationGracePeriodSeconds = 1
	}
	for c := range pod.Containers(s) {
		defaultContainer(c, s.HostNetwork)
	}
	for i := range s.Volumes {
		defaultVolume(&s.Volumes[i].VolumeSource)
	}
	defaultPodRequests(p)
}

func defaultContainer(c *v1.Container, hostNetwork bool) {
	if c.ImagePullPolicy == "" {
		c.ImagePullPolicy = v1.PullIfNotPresent
		if latest(c.Image) {
			c.ImagePullPolicy = v1.PullAlways
		}
	}
	orDefault(&c.TerminationMessagePath, v1.TerminationMessagePathDefault)
	orDefault(&c.TerminationMessagePolicy, v1.TerminationMessageReadFile)
	for i := range c.Ports {
		orDefault(&c.Ports[i].Protocol, v1.ProtocolTCP)
		if hostNetwork {
			orDefault(&c.Ports[i].HostPort, c.Ports[i].ContainerPort)
		}
	}
	for i := range c.Env {
		if from := c.Env[i].ValueFrom; from != nil && from.FieldRef != nil {
			orDefault(&from.FieldRef.APIVersion, "v1")
		}
	}
	for name, limit := range c.Resources.Limits {
		if c.Resources.Requests == nil {
			c.Resources.Requests = v1.ResourceList{}
		}
		if _, said := c.Resources.Requests[name]; !said {
			c.Resources.Requests[name] = limit.DeepCopy()
		}
	}
	for _, probe := range []*v1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
		if probe == nil {
			continue
		}
		orDefault(&probe.TimeoutSeconds, 1)
		orDefault(&probe.PeriodSeconds, 10)
		orDefault(&probe.SuccessThreshold, 1)
		orDefault(&probe.FailureThreshold, 3)
		defaultHTTP(probe.HTTPGet)
		if probe.GRPC != nil {
			orPointer(&probe.GRPC.Service, "")
		}
	}
	if c.Lifecycle != nil {
		for _, h := range []*v1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
			if h != nil {
				defaultHTTP(h.HTTPGet)
			}
		}
	}
}

func defaultHTTP(get *v1.HTTPGetAction) {
	if get != nil {
		orDefault(&get.Path, "/")
		orDefault(&get.Scheme, v1.URISchemeHTTP)
	}
}

func defaultVolume(v *v1.VolumeSource) {
	if *v == (v1.VolumeSource{}) {
		v.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	fields := func(items []v1.DownwardAPIVolumeFile) {
		for i := range items {
			if items[i].FieldRef != nil {
				orDefault(&items[i].FieldRef.APIVersion, "v1")
			}
		}
	}
	switch {
	case v.HostPath != nil:
		orPointer(&v.HostPath.Type, v1.HostPathUnset)
	case v.DownwardAPI != nil:
		orPointer(&v.DownwardAPI.DefaultMode, v1.DownwardAPIVolumeSourceDefaultMode)
		fields(v.DownwardAPI.Items)
	case v.Projected != nil:
		orPointer(&v.Projected.DefaultMode, v1.ProjectedVolumeSourceDefaultMode)
		for i := range v.Projected.Sources {
			if d := v.Projected.Sources[i].DownwardAPI; d != nil {
				fields(d.Items)
			}
		}
	case v.Image != nil && v.Image.PullPolicy == "":
		v.Image.PullPolicy = v1.PullIfNotPresent
		if latest(v.Image.Reference) {
			v.Image.PullPolicy = v1.PullAlways
		}
	case v.ISCSI != nil:
		orDefault(&v.ISCSI.ISCSIInterface, "default")
	}
}

// defaultPodRequests sets the pod-level requests of a pod that has pod-level limits: the sum of its
// containers' requests, or else the limit.
func defaultPodRequests(p *v1.Pod) {
	r := p.Spec.Resources
	if r == nil || len(r.Limits) == 0 {
		return
	}
	if r.Requests == nil {
		r.Requests = v1.ResourceList{}
	}
	asked := resourcehelper.AggregateContainerRequests(p, resourcehelper.PodResourcesOptions{})
	for _, from := range []v1.ResourceList{asked, r.Limits} {
		for name, q := range from {
			if _, said := r.Requests[name]; !said && resourcehelper.IsSupportedPodLevelResource(name) {
				r.Requests[name] = q.DeepCopy()
			}
		}
	}
}

// latest says whether the image has no digest, and either no tag or the tag latest.
func latest(image string) bool {
	if strings.Contains(image, "@") {
		return false
	}
	name := image[strings.LastIndexByte(image, '/')+1:]
	_, tag, tagged := strings.Cut(name, ":")
	return !tagged || tag == "latest"
}

func orDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func orPointer[T any](field **T, value T) {
	if *field == nil {
		*field = &value
	}
}
