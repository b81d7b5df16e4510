package admit

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

func yes() *bool { b := true; return &b }
func no() *bool  { b := false; return &b }

func proc(t v1.ProcMountType) *v1.ProcMountType { return &t }

// all forbids everything; one maps each reason to the policy that forbids only that.
var (
	all = Policy{NoPrivileged: true, NoHostPath: true, NoHostNetwork: true, NoNFS: true}
	one = map[string]Policy{
		ReasonPrivileged:  {NoPrivileged: true},
		ReasonHostPath:    {NoHostPath: true},
		ReasonHostNetwork: {NoHostNetwork: true},
		ReasonNFS:         {NoNFS: true},
	}
)

// containerCases are what a container may ask for: the reason of the refusal (empty: admitted), and
// the field below the container that the message names.
var containerCases = []struct {
	name, reason, field string
	ask                 func(*v1.Container)
}{
	{"plain", "", "", func(*v1.Container) {}},
	{"empty context", "", "", func(c *v1.Container) { c.SecurityContext = &v1.SecurityContext{} }},
	{"privileged", ReasonPrivileged, ".securityContext.privileged is true", sc(func(s *v1.SecurityContext) { s.Privileged = yes() })},
	{"privileged: false", "", "", sc(func(s *v1.SecurityContext) { s.Privileged = no() })},
	{"CAP_SYS_ADMIN", ReasonPrivileged, ".securityContext.capabilities.add has CAP_SYS_ADMIN", add("CAP_SYS_ADMIN")},
	{"sys_admin", ReasonPrivileged, ".securityContext.capabilities.add has sys_admin", add("sys_admin")},
	{"SYS_PTRACE", ReasonPrivileged, ".securityContext.capabilities.add has SYS_PTRACE", add("SYS_PTRACE")},
	{"NET_ADMIN", ReasonPrivileged, ".securityContext.capabilities.add has NET_ADMIN", add("NET_ADMIN")},
	{"ALL", ReasonPrivileged, ".securityContext.capabilities.add has ALL", add("ALL")},
	{"all", ReasonPrivileged, ".securityContext.capabilities.add has all", add("all")},
	{"one that is not known", ReasonPrivileged, ".securityContext.capabilities.add has SYS_TOMORROW", add("SYS_TOMORROW")},
	{"empty capability", ReasonPrivileged, ".securityContext.capabilities.add has ", add("")},
	{"the second is bad", ReasonPrivileged, ".securityContext.capabilities.add has SYS_TIME", add("CHOWN", "SYS_TIME")},
	{"plain capabilities", "", "", add("CHOWN", "cap_kill", "CAP_NET_RAW", "net_bind_service")},
	{"capabilities dropped", "", "", sc(func(s *v1.SecurityContext) {
		s.Capabilities = &v1.Capabilities{Drop: []v1.Capability{"ALL"}, Add: []v1.Capability{"NET_BIND_SERVICE"}}
	})},
	{"unmasked /proc", ReasonPrivileged, ".securityContext.procMount is Unmasked", sc(func(s *v1.SecurityContext) { s.ProcMount = proc(v1.UnmaskedProcMount) })},
	{"default /proc", "", "", sc(func(s *v1.SecurityContext) { s.ProcMount = proc(v1.DefaultProcMount) })},
	{"spc_t", ReasonPrivileged, ".securityContext.seLinuxOptions.type is spc_t", selinux(v1.SELinuxOptions{Type: "spc_t"})},
	{"container_t and a level", "", "", selinux(v1.SELinuxOptions{Type: "container_t", Level: "s0:c1,c2"})},
	{"selinux user", ReasonPrivileged, ".securityContext.seLinuxOptions.user is system_u", selinux(v1.SELinuxOptions{User: "system_u"})},
	{"selinux role", ReasonPrivileged, ".securityContext.seLinuxOptions.role is sysadm_r", selinux(v1.SELinuxOptions{Role: "sysadm_r"})},
	{"apparmor off", ReasonPrivileged, ".securityContext.appArmorProfile.type is Unconfined", sc(func(s *v1.SecurityContext) {
		s.AppArmorProfile = &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
	})},
	{"apparmor of the machine's", "", "", sc(func(s *v1.SecurityContext) {
		name := "mine"
		s.AppArmorProfile = &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}
	})},
	{"seccomp off, which is the default", "", "", sc(func(s *v1.SecurityContext) {
		s.SeccompProfile = &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined}
	})},
	{"root with setuid programs", "", "", sc(func(s *v1.SecurityContext) {
		root := int64(0)
		s.RunAsUser, s.AllowPrivilegeEscalation = &root, yes()
	})},
	{"hostProcess", ReasonPrivileged, ".securityContext.windowsOptions.hostProcess is true", sc(func(s *v1.SecurityContext) {
		s.WindowsOptions = &v1.WindowsSecurityContextOptions{HostProcess: yes()}
	})},
	{"windows without hostProcess", "", "", sc(func(s *v1.SecurityContext) {
		s.WindowsOptions = &v1.WindowsSecurityContextOptions{HostProcess: no()}
	})},
	{"hostPort", ReasonHostNetwork, ".ports has the hostPort 8080", func(c *v1.Container) {
		c.Ports = []v1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 81, HostPort: 8080}}
	}},
	{"a probe of another host", ReasonHostNetwork, ".livenessProbe.httpGet.host is 127.0.0.1", func(c *v1.Container) {
		c.LivenessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Host: "127.0.0.1"}}}
	}},
	{"a readiness probe of another host", ReasonHostNetwork, ".readinessProbe.tcpSocket.host is 10.0.0.1", func(c *v1.Container) {
		c.ReadinessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Host: "10.0.0.1"}}}
	}},
	{"a startup probe of another host", ReasonHostNetwork, ".startupProbe.httpGet.host is x", func(c *v1.Container) {
		c.StartupProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Host: "x"}}}
	}},
	{"probes of the pod", "", "", func(c *v1.Container) {
		c.LivenessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/"}}}
		c.ReadinessProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{}}}
		c.StartupProbe = &v1.Probe{ProbeHandler: v1.ProbeHandler{GRPC: &v1.GRPCAction{Port: 1}}}
	}},
	{"a hook to another host", ReasonHostNetwork, ".lifecycle.preStop.httpGet.host is x", func(c *v1.Container) {
		c.Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{Host: "x"}}}
	}},
	{"a first hook to another host", ReasonHostNetwork, ".lifecycle.postStart.tcpSocket.host is x", func(c *v1.Container) {
		c.Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{TCPSocket: &v1.TCPSocketAction{Host: "x"}}}
	}},
	{"hooks of the pod", "", "", func(c *v1.Container) {
		c.Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{HTTPGet: &v1.HTTPGetAction{}}, PreStop: &v1.LifecycleHandler{}}
	}},
	{"containerPort", "", "", func(c *v1.Container) { c.Ports = []v1.ContainerPort{{ContainerPort: 80}} }},
}

func sc(ask func(*v1.SecurityContext)) func(*v1.Container) {
	return func(c *v1.Container) {
		c.SecurityContext = &v1.SecurityContext{}
		ask(c.SecurityContext)
	}
}

func add(names ...v1.Capability) func(*v1.Container) {
	return sc(func(s *v1.SecurityContext) { s.Capabilities = &v1.Capabilities{Add: names} })
}

func selinux(o v1.SELinuxOptions) func(*v1.Container) {
	return sc(func(s *v1.SecurityContext) { s.SELinuxOptions = &o })
}

// plainPod has two containers of each kind, to check that each of them is checked.
func plainPod() *v1.Pod {
	p := &v1.Pod{}
	always := v1.ContainerRestartPolicyAlways
	p.Spec.InitContainers = []v1.Container{{Name: "setup"}, {Name: "proxy", RestartPolicy: &always}}
	p.Spec.Containers = []v1.Container{{Name: "web"}, {Name: "helper"}}
	p.Spec.EphemeralContainers = []v1.EphemeralContainer{
		{EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "look"}}, {EphemeralContainerCommon: v1.EphemeralContainerCommon{Name: "debug"}}}
	p.Spec.Volumes = []v1.Volume{{Name: "scratch", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	return p
}

// check expects a refusal by the policy of that reason and by all, and by no other policy.
func check(t *testing.T, what, reason, message string, admit func(Policy) *Rejection) {
	t.Helper()
	if got := admit(Policy{}); got != nil {
		t.Errorf("%s: an owner who forbids nothing refuses it: %+v", what, got)
	}
	for r, policy := range one {
		got := admit(policy)
		switch {
		case r != reason && got != nil:
			t.Errorf("%s: refused with %+v by a policy that gives %s", what, got, r)
		case r == reason && (got == nil || got.Reason != reason || !strings.Contains(got.Message, message)):
			t.Errorf("%s: %+v, want %s with %q", what, got, reason, message)
		}
	}
	if got := admit(all); (got != nil) != (reason != "") {
		t.Errorf("%s: with all forbidden %+v", what, got)
	}
}

func TestEveryContainer(t *testing.T) {
	for _, tc := range containerCases {
		for _, at := range []struct {
			field string
			of    func(*v1.Pod) *v1.Container
		}{
			{"spec.initContainers[setup]", func(p *v1.Pod) *v1.Container { return &p.Spec.InitContainers[0] }},
			{"spec.initContainers[proxy]", func(p *v1.Pod) *v1.Container { return &p.Spec.InitContainers[1] }},
			{"spec.containers[web]", func(p *v1.Pod) *v1.Container { return &p.Spec.Containers[0] }},
			{"spec.containers[helper]", func(p *v1.Pod) *v1.Container { return &p.Spec.Containers[1] }},
		} {
			p := plainPod()
			tc.ask(at.of(p))
			check(t, tc.name+" in "+at.field, tc.reason, at.field+tc.field, func(policy Policy) *Rejection { return Pod(p, policy) })
		}
		p := plainPod()
		tc.ask((*v1.Container)(&p.Spec.EphemeralContainers[1].EphemeralContainerCommon))
		check(t, tc.name+" in an ephemeral container", tc.reason, "spec.ephemeralContainers[debug]"+tc.field,
			func(policy Policy) *Rejection { return Ephemeral(p, "debug", policy) })
		for _, other := range []string{"look", "web", "nobody"} {
			if got := Ephemeral(p, other, all); got != nil {
				t.Errorf("%s: %s is refused for what debug asks: %+v", tc.name, other, got)
			}
		}
		if got := Pod(p, all); got != nil {
			t.Errorf("%s: the pod is refused for its ephemeral container: %+v", tc.name, got)
		}
	}
}

func TestPod(t *testing.T) {
	podSC := func(ask func(*v1.PodSecurityContext)) func(*v1.Pod) {
		return func(p *v1.Pod) {
			p.Spec.SecurityContext = &v1.PodSecurityContext{}
			ask(p.Spec.SecurityContext)
		}
	}
	for _, tc := range []struct {
		name, reason, message string
		ask                   func(*v1.Pod)
	}{
		{"plain", "", "", func(*v1.Pod) {}},
		{"empty context", "", "", podSC(func(*v1.PodSecurityContext) {})},
		{"hostPID", ReasonPrivileged, "spec.hostPID is true", func(p *v1.Pod) { p.Spec.HostPID = true }},
		{"hostIPC", ReasonPrivileged, "spec.hostIPC is true", func(p *v1.Pod) { p.Spec.HostIPC = true }},
		{"one process namespace", "", "", func(p *v1.Pod) { p.Spec.ShareProcessNamespace = yes() }},
		{"spc_t", ReasonPrivileged, "spec.securityContext.seLinuxOptions.type is spc_t", podSC(func(s *v1.PodSecurityContext) { s.SELinuxOptions = &v1.SELinuxOptions{Type: "spc_t"} })},
		{"apparmor off", ReasonPrivileged, "spec.securityContext.appArmorProfile.type is Unconfined", podSC(func(s *v1.PodSecurityContext) {
			s.AppArmorProfile = &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}
		})},
		{"apparmor off, of old", ReasonPrivileged, "metadata.annotations[container.apparmor.security.beta.kubernetes.io/web] is unconfined", func(p *v1.Pod) {
			p.Annotations = map[string]string{v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "web": "unconfined"}
		}},
		{"apparmor default, of old", "", "", func(p *v1.Pod) {
			p.Annotations = map[string]string{v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + "web": "runtime/default"}
		}},
		{"hostProcess", ReasonPrivileged, "spec.securityContext.windowsOptions.hostProcess is true", podSC(func(s *v1.PodSecurityContext) {
			s.WindowsOptions = &v1.WindowsSecurityContextOptions{HostProcess: yes()}
		})},
		{"sysctls of the pod's own", "", "", podSC(func(s *v1.PodSecurityContext) {
			s.Sysctls = []v1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}}
		})},
		{"hostPath", ReasonHostPath, "spec.volumes[etc].hostPath is /etc", func(p *v1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "etc", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/etc"}}})
		}},
		{"NFS", ReasonNFS, "spec.volumes[share].nfs is 127.0.0.1:/srv", func(p *v1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "share", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "127.0.0.1", Path: "/srv"}}})
		}},
		{"hostNetwork", ReasonHostNetwork, "spec.hostNetwork is true", func(p *v1.Pod) { p.Spec.HostNetwork = true }},
	} {
		p := plainPod()
		tc.ask(p)
		check(t, tc.name, tc.reason, tc.message, func(policy Policy) *Rejection { return Pod(p, policy) })
	}
}

// The message names every violation, so that one correction of the pod suffices.
func TestMessageTellsAll(t *testing.T) {
	p := plainPod()
	p.Spec.HostNetwork, p.Spec.HostPID = true, true
	p.Spec.Containers[1].SecurityContext = &v1.SecurityContext{Privileged: yes()}
	p.Spec.Volumes = []v1.Volume{{Name: "run", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/run"}}}}
	p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: "share", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "nas", Path: "/srv"}}})
	want := &Rejection{Reason: ReasonPrivileged, Message: "the owner of this host does not allow it (policy.allowPrivileged is false): " +
		"spec.hostPID is true, spec.containers[helper].securityContext.privileged is true; " +
		"the owner of this host does not allow it (policy.allowHostPath is false): spec.volumes[run].hostPath is /run; " +
		"the owner of this host does not allow it (policy.allowHostNetwork is false): spec.hostNetwork is true; " +
		"the owner of this host does not allow it (policy.allowNFS is false): spec.volumes[share].nfs is nas:/srv"}
	if got := Pod(p, all); got == nil || *got != *want {
		t.Errorf("%+v\nwant %+v", got, want)
	}
}

// Persistent volumes name paths of the host as volumes do.
func TestPersistentVolumes(t *testing.T) {
	block := v1.PersistentVolumeBlock
	for _, tc := range []struct {
		name, reason, message string
		spec                  v1.PersistentVolumeSpec
	}{
		{"hostPath", ReasonHostPath, "spec.volumes[data] is the persistent volume pv, whose hostPath is /",
			v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}}},
		{"local", ReasonHostPath, "whose local path is /srv",
			v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/srv"}}}},
		{"a disk", ReasonHostPath, "whose local path is /dev/sda",
			v1.PersistentVolumeSpec{VolumeMode: &block, PersistentVolumeSource: v1.PersistentVolumeSource{Local: &v1.LocalVolumeSource{Path: "/dev/sda"}}}},
		{"NFS", ReasonNFS, "spec.volumes[data] is the persistent volume pv, whose NFS export is s:/", v1.PersistentVolumeSpec{PersistentVolumeSource: v1.PersistentVolumeSource{NFS: &v1.NFSVolumeSource{Server: "s", Path: "/"}}}},
	} {
		pv := &v1.PersistentVolume{Spec: tc.spec}
		pv.Name = "pv"
		check(t, tc.name, tc.reason, tc.message, func(policy Policy) *Rejection { return Volume("data", pv, policy) })
	}
}
