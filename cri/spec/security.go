package spec

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// ImageUser is the user that an image runs as; at most one field is set. The zero value means
// unknown: the runtime uses the image's own user, and a container with runAsNonRoot is refused.
type ImageUser struct {
	UID  *int64
	Name string
}

// UserOf returns the user of an image (Image.Uid, Image.Username). An image without one runs as
// root; the user of a nil image is unknown.
func UserOf(image *runtimeapi.Image) ImageUser {
	switch {
	case image == nil:
		return ImageUser{}
	case image.Uid != nil:
		return ImageUser{UID: &image.Uid.Value}
	case image.Username != "":
		return ImageUser{Name: image.Username}
	}
	return ImageUser{UID: new(int64)}
}

// effective returns the container's security context, with the pod's values as defaults for the
// fields that pods have too.
func effective(p *v1.Pod, c *v1.Container) v1.SecurityContext {
	var out v1.SecurityContext
	if c.SecurityContext != nil {
		out = *c.SecurityContext
	}
	if sc := p.Spec.SecurityContext; sc != nil {
		if out.SELinuxOptions == nil {
			out.SELinuxOptions = sc.SELinuxOptions
		}
		if out.RunAsUser == nil {
			out.RunAsUser = sc.RunAsUser
		}
		if out.RunAsGroup == nil {
			out.RunAsGroup = sc.RunAsGroup
		}
		if out.RunAsNonRoot == nil {
			out.RunAsNonRoot = sc.RunAsNonRoot
		}
	}
	return out
}

// containerSecurity returns LinuxContainerConfig.SecurityContext.
func containerSecurity(p *v1.Pod, c *v1.Container, m Machine, in ContainerInput) (*runtimeapi.LinuxContainerSecurityContext, error) {
	sc := effective(p, c)
	if err := verifyNonRoot(p, c, sc, in.ImageUser); err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		Capabilities:   capabilities(sc.Capabilities),
		Privileged:     sc.Privileged != nil && *sc.Privileged,
		SelinuxOptions: selinux(sc.SELinuxOptions),
		RunAsUser:      int64Value(sc.RunAsUser),
		RunAsGroup:     int64Value(sc.RunAsGroup),
		ReadonlyRootfs: sc.ReadOnlyRootFilesystem != nil && *sc.ReadOnlyRootFilesystem,
		NoNewPrivs:     sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
	}
	if out.RunAsUser == nil {
		out.RunAsUser = int64Value(in.ImageUser.UID)
		out.RunAsUsername = in.ImageUser.Name
	}
	out.MaskedPaths, out.ReadonlyPaths = procPaths(sc.ProcMount, m)
	var err error
	if out.Seccomp, err = seccomp(p, c, m); err != nil {
		return nil, err
	}
	// containerd before 1.7 reads only the old field.
	//lint:ignore SA1019 the kubelet still fills both
	if out.Apparmor, out.ApparmorProfile, err = apparmor(p, c); err != nil {
		return nil, err
	}
	if out.NamespaceOptions, err = Namespaces(p, m); err != nil {
		return nil, err
	}
	if in.TargetID != "" && out.NamespaceOptions.Pid == runtimeapi.NamespaceMode_CONTAINER {
		out.NamespaceOptions.Pid = runtimeapi.NamespaceMode_TARGET
		out.NamespaceOptions.TargetId = in.TargetID
	}
	out.SupplementalGroups, out.SupplementalGroupsPolicy, err = groups(p.Spec.SecurityContext, in.SupplementalGroups)
	return out, err
}

func verifyNonRoot(p *v1.Pod, c *v1.Container, sc v1.SecurityContext, image ImageUser) error {
	if sc.RunAsNonRoot == nil || !*sc.RunAsNonRoot {
		return nil
	}
	who := fmt.Sprintf("(pod: %q, container: %s)", podFormat(p), c.Name)
	switch {
	case sc.RunAsUser != nil && *sc.RunAsUser == 0:
		return fmt.Errorf("container's runAsUser breaks non-root policy %s", who)
	case sc.RunAsUser != nil:
		return nil
	case image.UID == nil && image.Name != "":
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", image.Name, who)
	case image.UID == nil:
		// The image's user is unknown, so it may be root.
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", who)
	case *image.UID == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", who)
	case *image.UID < 0 || *image.UID > math.MaxInt32:
		return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d). (Must be 1-(%d)) %s", *image.UID, math.MaxInt32, who)
	}
	return nil
}

func capabilities(caps *v1.Capabilities) *runtimeapi.Capability {
	if caps == nil {
		return nil
	}
	out := &runtimeapi.Capability{}
	for _, c := range caps.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(c))
	}
	for _, c := range caps.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(c))
	}
	return out
}

func selinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func int64Value(v *int64) *runtimeapi.Int64Value {
	if v == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *v}
}

// groups returns fsGroup, the pod's supplemental groups, and those of its volumes.
func groups(sc *v1.PodSecurityContext, extra []int64) ([]int64, runtimeapi.SupplementalGroupsPolicy, error) {
	var out []int64
	policy := runtimeapi.SupplementalGroupsPolicy_Merge
	if sc != nil {
		if sc.FSGroup != nil {
			out = append(out, *sc.FSGroup)
		}
		out = append(out, sc.SupplementalGroups...)
		if sc.SupplementalGroupsPolicy != nil {
			value, ok := runtimeapi.SupplementalGroupsPolicy_value[string(*sc.SupplementalGroupsPolicy)]
			if !ok {
				return nil, 0, fmt.Errorf("unsupported supplementalGroupsPolicy: %s", *sc.SupplementalGroupsPolicy)
			}
			policy = runtimeapi.SupplementalGroupsPolicy(value)
		}
	}
	return append(out, extra...), policy, nil
}

// Paths of /proc and /sys that containers must not see or change, unless they are privileged or
// request an unmasked /proc. The lists are the defaults of OCI runtimes.
var (
	maskedPaths = []string{
		"/proc/asound",
		"/proc/acpi",
		"/proc/interrupts",
		"/proc/kcore",
		"/proc/keys",
		"/proc/latency_stats",
		"/proc/timer_list",
		"/proc/timer_stats",
		"/proc/sched_debug",
		"/proc/scsi",
		"/sys/firmware",
		"/sys/devices/virtual/powercap",
	}
	readonlyPaths = []string{
		"/proc/bus",
		"/proc/fs",
		"/proc/irq",
		"/proc/sys",
		"/proc/sysrq-trigger",
	}
)

func procPaths(mount *v1.ProcMountType, m Machine) (masked, readonly []string) {
	if mount != nil && *mount == v1.UnmaskedProcMount {
		return nil, nil
	}
	masked = slices.Clone(maskedPaths)
	for _, cpu := range m.ThermalThrottle {
		masked = append(masked, fmt.Sprintf("/sys/devices/system/cpu/cpu%d/thermal_throttle", cpu))
	}
	return masked, slices.Clone(readonlyPaths)
}

// seccomp returns the container's profile, or else the pod's, or else the host's default.
func seccomp(p *v1.Pod, c *v1.Container, m Machine) (*runtimeapi.SecurityProfile, error) {
	var profile *v1.SeccompProfile
	switch {
	case c.SecurityContext != nil && c.SecurityContext.SeccompProfile != nil:
		profile = c.SecurityContext.SeccompProfile
	case p.Spec.SecurityContext != nil && p.Spec.SecurityContext.SeccompProfile != nil:
		profile = p.Spec.SecurityContext.SeccompProfile
	case m.SeccompDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	default:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	}
	switch profile.Type {
	case v1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}, nil
	case v1.SeccompProfileTypeLocalhost:
		if profile.LocalhostProfile == nil || *profile.LocalhostProfile == "" {
			return nil, errors.New("localhostProfile must be set if seccompProfile type is Localhost")
		}
		if slices.Contains(strings.Split(*profile.LocalhostProfile, "/"), "..") {
			return nil, fmt.Errorf("localhostProfile %q must not contain '..'", *profile.LocalhostProfile)
		}
		return &runtimeapi.SecurityProfile{
			ProfileType:  runtimeapi.SecurityProfile_Localhost,
			LocalhostRef: join(m.RootDir, "seccomp", *profile.LocalhostProfile),
		}, nil
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
}

// apparmor returns the container's profile, or else that of the old annotation (static pods may
// have only that), or else the pod's, or else none, which leaves the runtime's default. The second
// result is the old string form, for older runtimes.
func apparmor(p *v1.Pod, c *v1.Container) (*runtimeapi.SecurityProfile, string, error) {
	var profile *v1.AppArmorProfile
	if c.SecurityContext != nil {
		profile = c.SecurityContext.AppArmorProfile
	}
	if profile == nil {
		profile = apparmorAnnotation(p.Annotations[v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix+c.Name])
	}
	if profile == nil && p.Spec.SecurityContext != nil {
		profile = p.Spec.SecurityContext.AppArmorProfile
	}
	if profile == nil {
		return nil, "", nil
	}
	switch profile.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			v1.DeprecatedAppArmorBetaProfileRuntimeDefault, nil
	case v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined},
			v1.DeprecatedAppArmorBetaProfileNameUnconfined, nil
	case v1.AppArmorProfileTypeLocalhost:
		if profile.LocalhostProfile == nil {
			return nil, "", errors.New("missing localhost apparmor profile name")
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *profile.LocalhostProfile},
			v1.DeprecatedAppArmorBetaProfileNamePrefix + *profile.LocalhostProfile, nil
	}
	return nil, "", fmt.Errorf("unknown apparmor profile type: %q", profile.Type)
}

func apparmorAnnotation(value string) *v1.AppArmorProfile {
	switch name, local := strings.CutPrefix(value, v1.DeprecatedAppArmorBetaProfileNamePrefix); {
	case value == v1.DeprecatedAppArmorBetaProfileRuntimeDefault:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}
	case value == v1.DeprecatedAppArmorBetaProfileNameUnconfined:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	case local:
		return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	}
	return nil
}
