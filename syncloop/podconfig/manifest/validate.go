package manifest

import (
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/bowline-k8s/bowline/pod"
)

// validate lists errors that would keep the pod from running, or would run something that the
// author did not intend. The API server applies all its rules to the mirror pod; the pod has to run
// without them.
func validate(p *v1.Pod) field.ErrorList {
	meta, spec, s := field.NewPath("metadata"), field.NewPath("spec"), &p.Spec
	errs := invalid(meta.Child("name"), p.Name, validation.IsDNS1123Subdomain(p.Name))
	errs = append(errs, invalid(meta.Child("namespace"), p.Namespace, validation.IsDNS1123Label(p.Namespace))...)
	if strings.ContainsAny(string(p.UID), "/\\ \n_") || len(p.UID) > 63 {
		errs = append(errs, field.Invalid(meta.Child("uid"), p.UID, "letters, digits and dashes, 63 at most: directories are named by it"))
	}
	for k, v := range p.Labels {
		errs = append(errs, invalid(meta.Child("labels"), k, validation.IsQualifiedName(k))...)
		errs = append(errs, invalid(meta.Child("labels").Key(k), v, validation.IsValidLabelValue(v))...)
	}
	for k := range p.Annotations {
		errs = append(errs, invalid(meta.Child("annotations"), k, validation.IsQualifiedName(strings.ToLower(k)))...)
	}
	errs = append(errs, oneOf(spec.Child("restartPolicy"), s.RestartPolicy, v1.RestartPolicyAlways, v1.RestartPolicyOnFailure, v1.RestartPolicyNever)...)
	errs = append(errs, oneOf(spec.Child("dnsPolicy"), s.DNSPolicy, v1.DNSClusterFirst, v1.DNSClusterFirstWithHostNet, v1.DNSDefault, v1.DNSNone)...)
	if s.DNSPolicy == v1.DNSNone && (s.DNSConfig == nil || len(s.DNSConfig.Nameservers) == 0) {
		errs = append(errs, field.Required(spec.Child("dnsConfig", "nameservers"), "dnsPolicy is None"))
	}
	if d := s.ActiveDeadlineSeconds; d != nil && *d < 1 {
		errs = append(errs, field.Invalid(spec.Child("activeDeadlineSeconds"), *d, "at least 1"))
	}
	if s.Hostname != "" {
		errs = append(errs, invalid(spec.Child("hostname"), s.Hostname, validation.IsDNS1123Label(s.Hostname))...)
	}
	if len(s.EphemeralContainers) > 0 {
		errs = append(errs, field.Forbidden(spec.Child("ephemeralContainers"), "they are added to a pod that runs"))
	}
	if len(s.Containers) == 0 {
		errs = append(errs, field.Required(spec.Child("containers"), "a pod has at least one container"))
	}
	volumes, more := validateVolumes(spec.Child("volumes"), s.Volumes)
	errs = append(errs, more...)
	names := sets.New[string]()
	for i := range s.InitContainers {
		errs = append(errs, validateContainer(spec.Child("initContainers").Index(i), &s.InitContainers[i], names, volumes)...)
		if pod.Sidecar(&s.InitContainers[i]) {
			continue // a sidecar may have the fields of a main container
		}
		errs = append(errs, validatePlainInit(spec.Child("initContainers").Index(i), &s.InitContainers[i])...)
	}
	for i := range s.Containers {
		errs = append(errs, validateContainer(spec.Child("containers").Index(i), &s.Containers[i], names, volumes)...)
	}
	errs = append(errs, validateHostPorts(spec, s)...)
	slices.SortFunc(errs, func(a, b *field.Error) int { return strings.Compare(a.Error(), b.Error()) })
	return errs
}

func validatePlainInit(p *field.Path, c *v1.Container) field.ErrorList {
	var errs field.ErrorList
	for name, set := range map[string]bool{"lifecycle": c.Lifecycle != nil, "livenessProbe": c.LivenessProbe != nil,
		"readinessProbe": c.ReadinessProbe != nil, "startupProbe": c.StartupProbe != nil} {
		if set {
			errs = append(errs, field.Forbidden(p.Child(name), "an init container has none, unless its restartPolicy is Always"))
		}
	}
	return errs
}

func validateVolumes(p *field.Path, volumes []v1.Volume) (sets.Set[string], field.ErrorList) {
	names, errs := sets.New[string](), field.ErrorList(nil)
	for i := range volumes {
		at := p.Index(i)
		errs = append(errs, invalid(at.Child("name"), volumes[i].Name, validation.IsDNS1123Label(volumes[i].Name))...)
		if names.Has(volumes[i].Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), volumes[i].Name))
		}
		names.Insert(volumes[i].Name)
		if n := sources(&volumes[i].VolumeSource); n > 1 {
			errs = append(errs, field.Forbidden(at, "a volume has one source"))
		}
		if h := volumes[i].HostPath; h != nil {
			switch {
			case h.Path == "":
				errs = append(errs, field.Required(at.Child("hostPath", "path"), "a path on the host"))
			case hasDots(h.Path):
				errs = append(errs, field.Invalid(at.Child("hostPath", "path"), h.Path, "no part of it may be '..'"))
			}
			errs = append(errs, oneOf(at.Child("hostPath", "type"), *h.Type, v1.HostPathUnset, v1.HostPathDirectoryOrCreate, v1.HostPathDirectory,
				v1.HostPathFileOrCreate, v1.HostPathFile, v1.HostPathSocket, v1.HostPathCharDev, v1.HostPathBlockDev)...)
		}
	}
	return names, errs
}

func validateContainer(p *field.Path, c *v1.Container, names, volumes sets.Set[string]) field.ErrorList {
	errs := invalid(p.Child("name"), c.Name, validation.IsDNS1123Label(c.Name))
	if names.Has(c.Name) {
		errs = append(errs, field.Duplicate(p.Child("name"), c.Name))
	}
	names.Insert(c.Name)
	if strings.TrimSpace(c.Image) != c.Image || c.Image == "" {
		errs = append(errs, field.Invalid(p.Child("image"), c.Image, "an image's name, without blanks around it"))
	}
	errs = append(errs, oneOf(p.Child("imagePullPolicy"), c.ImagePullPolicy, v1.PullAlways, v1.PullIfNotPresent, v1.PullNever)...)
	errs = append(errs, oneOf(p.Child("terminationMessagePolicy"), c.TerminationMessagePolicy, v1.TerminationMessageReadFile, v1.TerminationMessageFallbackToLogsOnError)...)
	errs = append(errs, validatePorts(p.Child("ports"), c.Ports)...)
	for i, e := range c.Env {
		at := p.Child("env").Index(i)
		errs = append(errs, invalid(at.Child("name"), e.Name, validation.IsRelaxedEnvVarName(e.Name))...)
		if e.Value != "" && e.ValueFrom != nil {
			errs = append(errs, field.Forbidden(at.Child("valueFrom"), "there is a value as well"))
		}
	}
	mounted := sets.New[string]()
	for i, m := range c.VolumeMounts {
		at := p.Child("volumeMounts").Index(i)
		if !volumes.Has(m.Name) {
			errs = append(errs, field.NotFound(at.Child("name"), m.Name))
		}
		switch {
		case m.MountPath == "":
			errs = append(errs, field.Required(at.Child("mountPath"), "a path in the container"))
		case mounted.Has(m.MountPath):
			errs = append(errs, field.Duplicate(at.Child("mountPath"), m.MountPath))
		}
		mounted.Insert(m.MountPath)
		for name, sub := range map[string]string{"subPath": m.SubPath, "subPathExpr": m.SubPathExpr} {
			if path.IsAbs(sub) || hasDots(sub) {
				errs = append(errs, field.Invalid(at.Child(name), sub, "a relative path, no part of which is '..'"))
			}
		}
		if m.SubPath != "" && m.SubPathExpr != "" {
			errs = append(errs, field.Forbidden(at.Child("subPathExpr"), "there is a subPath as well"))
		}
	}
	for name, probe := range map[string]*v1.Probe{"livenessProbe": c.LivenessProbe, "readinessProbe": c.ReadinessProbe, "startupProbe": c.StartupProbe} {
		errs = append(errs, validateProbe(p.Child(name), probe, name != "readinessProbe")...)
	}
	if c.Lifecycle != nil {
		for name, h := range map[string]*v1.LifecycleHandler{"postStart": c.Lifecycle.PostStart, "preStop": c.Lifecycle.PreStop} {
			if h != nil && count(h.Exec != nil, h.HTTPGet != nil, h.TCPSocket != nil, h.Sleep != nil) != 1 {
				errs = append(errs, field.Invalid(p.Child("lifecycle", name), "", "exactly one of exec, httpGet, tcpSocket and sleep"))
			}
		}
	}
	return append(errs, validateResources(p.Child("resources"), &c.Resources)...)
}

func validatePorts(p *field.Path, ports []v1.ContainerPort) field.ErrorList {
	var errs field.ErrorList
	names := sets.New[string]()
	for i, port := range ports {
		at := p.Index(i)
		if port.Name != "" {
			errs = append(errs, invalid(at.Child("name"), port.Name, validation.IsValidPortName(port.Name))...)
			if names.Has(port.Name) {
				errs = append(errs, field.Duplicate(at.Child("name"), port.Name))
			}
			names.Insert(port.Name)
		}
		errs = append(errs, invalid(at.Child("containerPort"), port.ContainerPort, validation.IsValidPortNum(int(port.ContainerPort)))...)
		if port.HostPort != 0 {
			errs = append(errs, invalid(at.Child("hostPort"), port.HostPort, validation.IsValidPortNum(int(port.HostPort)))...)
		}
		errs = append(errs, oneOf(at.Child("protocol"), port.Protocol, v1.ProtocolTCP, v1.ProtocolUDP, v1.ProtocolSCTP)...)
	}
	return errs
}

// validateHostPorts checks that with hostNetwork a hostPort equals its containerPort, as both are
// one port of the host, and that no two containers use the same hostPort, as the second could not
// start.
func validateHostPorts(p *field.Path, s *v1.PodSpec) field.ErrorList {
	var errs field.ErrorList
	type port struct {
		ip       string
		protocol v1.Protocol
		number   int32
	}
	taken := sets.New[port]()
	for i := range s.Containers {
		for j, c := range s.Containers[i].Ports {
			at := p.Child("containers").Index(i).Child("ports").Index(j).Child("hostPort")
			if s.HostNetwork && c.HostPort != c.ContainerPort {
				errs = append(errs, field.Invalid(at, c.HostPort, "with hostNetwork it is the containerPort"))
			}
			if key := (port{c.HostIP, c.Protocol, c.HostPort}); c.HostPort != 0 {
				if taken.Has(key) {
					errs = append(errs, field.Duplicate(at, c.HostPort))
				}
				taken.Insert(key)
			}
		}
	}
	return errs
}

func validateProbe(p *field.Path, probe *v1.Probe, once bool) field.ErrorList {
	if probe == nil {
		return nil
	}
	var errs field.ErrorList
	if count(probe.Exec != nil, probe.HTTPGet != nil, probe.TCPSocket != nil, probe.GRPC != nil) != 1 {
		errs = append(errs, field.Invalid(p, "", "exactly one of exec, httpGet, tcpSocket and grpc"))
	}
	for name, n := range map[string]int32{"initialDelaySeconds": probe.InitialDelaySeconds, "timeoutSeconds": probe.TimeoutSeconds,
		"periodSeconds": probe.PeriodSeconds, "successThreshold": probe.SuccessThreshold, "failureThreshold": probe.FailureThreshold} {
		if n < 0 {
			errs = append(errs, field.Invalid(p.Child(name), n, "less than nothing"))
		}
	}
	if once && probe.SuccessThreshold > 1 {
		errs = append(errs, field.Invalid(p.Child("successThreshold"), probe.SuccessThreshold, "1 for all but a readinessProbe"))
	}
	return errs
}

func validateResources(p *field.Path, r *v1.ResourceRequirements) field.ErrorList {
	var errs field.ErrorList
	for name, list := range map[string]v1.ResourceList{"limits": r.Limits, "requests": r.Requests} {
		for resource, q := range list {
			if q.Sign() < 0 {
				errs = append(errs, field.Invalid(p.Child(name).Key(string(resource)), q.String(), "less than nothing"))
			}
		}
	}
	for resource, asked := range r.Requests {
		if limit, ok := r.Limits[resource]; ok && asked.Cmp(limit) > 0 {
			errs = append(errs, field.Invalid(p.Child("requests").Key(string(resource)), asked.String(), "more than the limit "+limit.String()))
		}
	}
	if len(r.Claims) > 0 {
		errs = append(errs, field.Forbidden(p.Child("claims"), "a static pod has no resource claims"))
	}
	return errs
}

func invalid(p *field.Path, value any, messages []string) field.ErrorList {
	var errs field.ErrorList
	for _, s := range messages {
		errs = append(errs, field.Invalid(p, value, s))
	}
	return errs
}

func oneOf[T ~string](p *field.Path, value T, known ...T) field.ErrorList {
	for _, k := range known {
		if value == k {
			return nil
		}
	}
	return field.ErrorList{field.NotSupported(p, value, known)}
}

func count(set ...bool) (n int) {
	for _, is := range set {
		if is {
			n++
		}
	}
	return n
}

func hasDots(p string) bool {
	for part := range strings.SplitSeq(p, "/") {
		if part == ".." {
			return true
		}
	}
	return false
}
