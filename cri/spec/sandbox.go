package spec

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	v1 "k8s.io/api/core/v1"
	sysctl "k8s.io/component-helpers/node/util/sysctl"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/pod"
)

// Sandbox returns the PodSandboxConfig of a pod's sandbox with this attempt number. An error means
// that the spec requests something that is not possible; it goes into a FailedCreatePodSandBox
// event.
func Sandbox(p *v1.Pod, m Machine, attempt uint32) (*runtimeapi.PodSandboxConfig, error) {
	if m.Owner == "" {
		return nil, errors.New("sandbox without an owner label: Machine.Owner is empty, so nothing would ever remove it")
	}
	dns, _, err := DNS(p, m)
	if err != nil {
		return nil, err
	}
	config := &runtimeapi.PodSandboxConfig{
		Metadata: &runtimeapi.PodSandboxMetadata{
			Name:      p.Name,
			Namespace: p.Namespace,
			Uid:       string(p.UID),
			Attempt:   attempt,
		},
		LogDirectory: LogDir(m, p),
		DnsConfig:    dns,
		PortMappings: portMappings(p),
		Labels:       sandboxLabels(p, m),
		Annotations:  sandboxAnnotations(p, m),
	}
	if !p.Spec.HostNetwork {
		if config.Hostname, err = kernelHostname(p, m); err != nil {
			return nil, err
		}
	}
	security, err := sandboxSecurity(p, m)
	if err != nil {
		return nil, err
	}
	config.Linux = &runtimeapi.LinuxPodSandboxConfig{
		CgroupParent:    CgroupParent(p, m),
		SecurityContext: security,
		Sysctls:         sysctls(p),
		Resources:       sandboxResources(p, m),
		Overhead:        overheadResources(p, m),
	}
	return config, nil
}

func sandboxLabels(p *v1.Pod, m Machine) map[string]string {
	labels := bounded(p.Labels, maxLabels)
	labels[pod.LabelPodName] = p.Name
	labels[pod.LabelPodNamespace] = p.Namespace
	labels[pod.LabelPodUID] = string(p.UID)
	labels[pod.LabelOwner] = m.Owner // last, so that a pod's own label cannot fake a stamp
	return labels
}

// sandboxAnnotations returns the pod's own annotations, and those that a later process needs to
// manage the pod. A pod with so many containers that its allocation is too long goes without it: a resize is then
// found only by the process that made the sandbox.
func sandboxAnnotations(p *v1.Pod, m Machine) map[string]string {
	ours := map[string]string{}
	if allocation := pod.AllocationOf(p).String(); len(allocation) <= maxAllocation {
		ours[pod.AnnotationAllocation] = allocation
	}
	var users *pod.IDRange
	if pod.HasUserNamespace(p) {
		users = m.UserNamespace
	}
	ours[pod.AnnotationUsers] = users.String()
	theirs := maps.Clone(p.Annotations)
	delete(theirs, pod.AnnotationAllocation)
	delete(theirs, pod.AnnotationUsers)
	out := bounded(theirs, maxAnnotations-cost(ours))
	maps.Copy(out, ours)
	return out
}

func sysctls(p *v1.Pod) map[string]string {
	if p.Spec.SecurityContext == nil || len(p.Spec.SecurityContext.Sysctls) == 0 {
		return nil
	}
	out := map[string]string{}
	for _, s := range p.Spec.SecurityContext.Sysctls {
		// A pod may separate the parts by slashes; CRI-O accepts only dots.
		out[sysctl.NormalizeName(s.Name)] = s.Value
	}
	return out
}

// portMappings returns the ports of the normal containers. The runtime's network plugin maps those
// with a host port.
func portMappings(p *v1.Pod) []*runtimeapi.PortMapping {
	var out []*runtimeapi.PortMapping
	for i := range p.Spec.Containers {
		seen := map[string]bool{}
		for _, port := range p.Spec.Containers[i].Ports {
			// The same port may appear once per address family.
			key := port.Name
			if key == "" {
				key = fmt.Sprintf("%s-%s-%s:%d:%d", addressFamily(port.HostIP), port.Protocol, port.HostIP, port.ContainerPort, port.HostPort)
			}
			if seen[key] {
				continue
			}
			seen[key] = true
			out = append(out, &runtimeapi.PortMapping{
				Protocol:      protocol(port.Protocol),
				ContainerPort: port.ContainerPort,
				HostPort:      port.HostPort,
				HostIp:        port.HostIP,
			})
		}
	}
	return out
}

func addressFamily(ip string) string {
	switch {
	case ip == "":
		return "any"
	case strings.Contains(ip, ":"):
		return "v6"
	}
	return "v4"
}

func protocol(p v1.Protocol) runtimeapi.Protocol {
	switch p {
	case v1.ProtocolUDP:
		return runtimeapi.Protocol_UDP
	case v1.ProtocolSCTP:
		return runtimeapi.Protocol_SCTP
	}
	return runtimeapi.Protocol_TCP
}

func sandboxSecurity(p *v1.Pod, m Machine) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	namespaces, err := Namespaces(p, m)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: namespaces,
		Privileged:       anyPrivileged(p),
		// None of the pod's own code runs in the sandbox's process: least privilege.
		Seccomp: &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
	}
	sc := p.Spec.SecurityContext
	if sc == nil {
		return out, nil
	}
	out.RunAsUser = int64Value(sc.RunAsUser)
	out.RunAsGroup = int64Value(sc.RunAsGroup)
	out.SelinuxOptions = selinux(sc.SELinuxOptions)
	if out.SupplementalGroups, out.SupplementalGroupsPolicy, err = groups(sc, nil); err != nil {
		return nil, err
	}
	return out, nil
}

func anyPrivileged(p *v1.Pod) bool {
	for c := range pod.AllContainers(&p.Spec) {
		if sc := c.SecurityContext; sc != nil && sc.Privileged != nil && *sc.Privileged {
			return true
		}
	}
	return false
}

// Namespaces returns which namespaces the pod's containers share, and with what.
func Namespaces(p *v1.Pod, m Machine) (*runtimeapi.NamespaceOption, error) {
	out := &runtimeapi.NamespaceOption{
		Network:       nodeOrPod(p.Spec.HostNetwork),
		Ipc:           nodeOrPod(p.Spec.HostIPC),
		Pid:           runtimeapi.NamespaceMode_CONTAINER,
		UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE},
	}
	switch {
	case p.Spec.HostPID:
		out.Pid = runtimeapi.NamespaceMode_NODE
	case p.Spec.ShareProcessNamespace != nil && *p.Spec.ShareProcessNamespace:
		out.Pid = runtimeapi.NamespaceMode_POD
	}
	if pod.HasUserNamespace(p) {
		if m.UserNamespace == nil {
			return nil, errors.New("can't set `spec.hostUsers: false`, runtime does not support user namespaces")
		}
		ids := []*runtimeapi.IDMapping{{HostId: m.UserNamespace.HostID, ContainerId: 0, Length: m.UserNamespace.Length}}
		out.UsernsOptions = &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: ids, Gids: ids}
	}
	return out, nil
}

func nodeOrPod(node bool) runtimeapi.NamespaceMode {
	if node {
		return runtimeapi.NamespaceMode_NODE
	}
	return runtimeapi.NamespaceMode_POD
}

// podFormat returns a pod's name in events: name_namespace(uid).
func podFormat(p *v1.Pod) string { return p.Name + "_" + p.Namespace + "(" + string(p.UID) + ")" }
