package admit

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// Policy has the features that the host's owner forbids to pods. The zero Policy forbids nothing.
type Policy struct {
	NoPrivileged  bool
	NoHostPath    bool
	NoHostNetwork bool
	NoNFS         bool
}

// Rejection is why a pod, or one of its containers, may not run on this host.
type Rejection struct {
	Reason  string // of the first violation; for status.reason and the event
	Message string // names every field and container that violates the policy
}

// Error makes a Rejection an error, to report a violation that is found outside the pod object,
// such as in a persistent volume.
func (r *Rejection) Error() string { return r.Message }

// The reasons of a Rejection by policy, one for each field of Policy.
const (
	ReasonPrivileged  = "PrivilegedForbidden"
	ReasonHostPath    = "HostPathForbidden"
	ReasonHostNetwork = "HostNetworkForbidden"
	ReasonNFS         = "NFSForbidden"
)

// Pod checks the pod without its ephemeral containers. nil means admitted.
func Pod(p *v1.Pod, policy Policy) *Rejection {
	var f findings
	spec := &p.Spec
	if policy.NoPrivileged {
		f.privilegedPod(spec)
	}
	for _, list := range []struct {
		field      string
		containers []v1.Container
	}{{"spec.initContainers", spec.InitContainers}, {"spec.containers", spec.Containers}} {
		for i := range list.containers {
			c := &list.containers[i]
			f.container(list.field+"["+c.Name+"]", p, c, policy)
		}
	}
	for i := range spec.Volumes {
		v := &spec.Volumes[i]
		if policy.NoHostPath && v.HostPath != nil {
			f.add(ReasonHostPath, "spec.volumes[%s].hostPath is %s", v.Name, v.HostPath.Path)
		}
		if policy.NoNFS && v.NFS != nil {
			f.add(ReasonNFS, "spec.volumes[%s].nfs is %s:%s", v.Name, v.NFS.Server, v.NFS.Path)
		}
	}
	if policy.NoHostNetwork && spec.HostNetwork {
		f.add(ReasonHostNetwork, "spec.hostNetwork is true")
	}
	return f.rejection()
}

// Volume checks the persistent volume behind the pod's volume name, which the pod's own spec does
// not show. nil means admitted.
func Volume(name string, pv *v1.PersistentVolume, policy Policy) *Rejection {
	var f findings
	switch source := pv.Spec.PersistentVolumeSource; {
	case source.HostPath != nil && policy.NoHostPath:
		f.add(ReasonHostPath, "spec.volumes[%s] is the persistent volume %s, whose hostPath is %s", name, pv.Name, source.HostPath.Path)
	case source.Local != nil && policy.NoHostPath:
		f.add(ReasonHostPath, "spec.volumes[%s] is the persistent volume %s, whose local path is %s", name, pv.Name, source.Local.Path)
	case source.NFS != nil && policy.NoNFS:
		f.add(ReasonNFS, "spec.volumes[%s] is the persistent volume %s, whose NFS export is %s:%s", name, pv.Name, source.NFS.Server, source.NFS.Path)
	}
	return f.rejection()
}

// Ephemeral checks only the ephemeral container of this name. nil means admitted, or that the pod
// has no such container.
func Ephemeral(p *v1.Pod, name string, policy Policy) *Rejection {
	var f findings
	for i := range p.Spec.EphemeralContainers {
		if c := (*v1.Container)(&p.Spec.EphemeralContainers[i].EphemeralContainerCommon); c.Name == name {
			f.container("spec.ephemeralContainers["+name+"]", p, c, policy)
		}
	}
	return f.rejection()
}

// findings are the policy violations, in the order of the checks.
type findings []struct{ reason, what string }

func (f *findings) add(reason, format string, args ...any) {
	*f = append(*f, struct{ reason, what string }{reason, fmt.Sprintf(format, args...)})
}

// rejection reports all findings, in one sentence per field of the policy.
func (f findings) rejection() *Rejection {
	if len(f) == 0 {
		return nil
	}
	var sentences []string
	for _, field := range []struct{ reason, name string }{
		{ReasonPrivileged, "allowPrivileged"}, {ReasonHostPath, "allowHostPath"}, {ReasonHostNetwork, "allowHostNetwork"},
		{ReasonNFS, "allowNFS"},
	} {
		var what []string
		for _, one := range f {
			if one.reason == field.reason {
				what = append(what, one.what)
			}
		}
		if len(what) > 0 {
			sentences = append(sentences, fmt.Sprintf("the owner of this host does not allow it (policy.%s is false): %s", field.name, strings.Join(what, ", ")))
		}
	}
	return &Rejection{Reason: f[0].reason, Message: strings.Join(sentences, "; ")}
}

// privilegedPod finds pod-level fields that give power over the host.
func (f *findings) privilegedPod(spec *v1.PodSpec) {
	if spec.HostPID {
		f.add(ReasonPrivileged, "spec.hostPID is true")
	}
	if spec.HostIPC {
		f.add(ReasonPrivileged, "spec.hostIPC is true")
	}
	sc := spec.SecurityContext
	if sc == nil {
		return
	}
	const at = "spec.securityContext"
	f.selinux(at, sc.SELinuxOptions)
	f.apparmor(at, sc.AppArmorProfile)
	f.hostProcess(at, sc.WindowsOptions)
}

// container finds the violations of one container; at is its path in the pod.
func (f *findings) container(at string, p *v1.Pod, c *v1.Container, policy Policy) {
	if policy.NoPrivileged {
		f.privileged(at+".securityContext", c.SecurityContext)
		key := v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
		if p.Annotations[key] == v1.DeprecatedAppArmorBetaProfileNameUnconfined {
			f.add(ReasonPrivileged, "metadata.annotations[%s] is %s", key, v1.DeprecatedAppArmorBetaProfileNameUnconfined)
		}
	}
	if policy.NoHostNetwork {
		for _, port := range c.Ports {
			if port.HostPort != 0 {
				f.add(ReasonHostNetwork, "%s.ports has the hostPort %d", at, port.HostPort)
			}
		}
		f.probes(at, c)
		f.hooks(at, c)
	}
}

// probes finds probes that the host would send to an address other than the pod's.
func (f *findings) probes(at string, c *v1.Container) {
	for _, probe := range []struct {
		name string
		*v1.Probe
	}{{"livenessProbe", c.LivenessProbe}, {"readinessProbe", c.ReadinessProbe}, {"startupProbe", c.StartupProbe}} {
		if probe.Probe != nil {
			f.otherHost(at+"."+probe.name, probe.HTTPGet, probe.TCPSocket)
		}
	}
}

// hooks finds lifecycle hooks that the host would send to such an address.
func (f *findings) hooks(at string, c *v1.Container) {
	if c.Lifecycle == nil {
		return
	}
	for _, hook := range []struct {
		name string
		*v1.LifecycleHandler
	}{{"postStart", c.Lifecycle.PostStart}, {"preStop", c.Lifecycle.PreStop}} {
		if hook.LifecycleHandler != nil {
			f.otherHost(at+".lifecycle."+hook.name, hook.HTTPGet, hook.TCPSocket)
		}
	}
}

// otherHost finds an explicit host in a probe or a hook.
func (f *findings) otherHost(at string, get *v1.HTTPGetAction, connect *v1.TCPSocketAction) {
	if get != nil && get.Host != "" {
		f.add(ReasonHostNetwork, "%s.httpGet.host is %s", at, get.Host)
	}
	if connect != nil && connect.Host != "" {
		f.add(ReasonHostNetwork, "%s.tcpSocket.host is %s", at, connect.Host)
	}
}

func (f *findings) privileged(at string, sc *v1.SecurityContext) {
	if sc == nil {
		return
	}
	if sc.Privileged != nil && *sc.Privileged {
		f.add(ReasonPrivileged, "%s.privileged is true", at)
	}
	if sc.Capabilities != nil {
		for _, c := range sc.Capabilities.Add {
			if !plain(c) {
				f.add(ReasonPrivileged, "%s.capabilities.add has %s", at, c)
			}
		}
	}
	if sc.ProcMount != nil && *sc.ProcMount != v1.DefaultProcMount {
		f.add(ReasonPrivileged, "%s.procMount is %s", at, *sc.ProcMount)
	}
	f.selinux(at, sc.SELinuxOptions)
	f.apparmor(at, sc.AppArmorProfile)
	f.hostProcess(at, sc.WindowsOptions)
}

// plainCapabilities are the default capabilities of containerd and of CRI-O together.
var plainCapabilities = []string{"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD",
	"NET_BIND_SERVICE", "NET_RAW", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}

// plain accepts a name as runtimes do: in any case, with or without CAP_.
func plain(c v1.Capability) bool {
	return slices.Contains(plainCapabilities, strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_"))
}

// plainSELinuxTypes are the types of confined containers.
var plainSELinuxTypes = []string{"", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"}

func (f *findings) selinux(at string, o *v1.SELinuxOptions) {
	if o == nil {
		return
	}
	if !slices.Contains(plainSELinuxTypes, o.Type) {
		f.add(ReasonPrivileged, "%s.seLinuxOptions.type is %s", at, o.Type)
	}
	if o.User != "" {
		f.add(ReasonPrivileged, "%s.seLinuxOptions.user is %s", at, o.User)
	}
	if o.Role != "" {
		f.add(ReasonPrivileged, "%s.seLinuxOptions.role is %s", at, o.Role)
	}
}

func (f *findings) apparmor(at string, profile *v1.AppArmorProfile) {
	if profile != nil && profile.Type == v1.AppArmorProfileTypeUnconfined {
		f.add(ReasonPrivileged, "%s.appArmorProfile.type is %s", at, profile.Type)
	}
}

func (f *findings) hostProcess(at string, o *v1.WindowsSecurityContextOptions) {
	if o != nil && o.HostProcess != nil && *o.HostProcess {
		f.add(ReasonPrivileged, "%s.windowsOptions.hostProcess is true", at)
	}
}
