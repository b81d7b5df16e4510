package spec

import (
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Hostname returns the pod's short host name and its domain, which is empty unless the pod has a
// subdomain. It fails if the spec's names are not DNS names.
func Hostname(p *v1.Pod, m Machine) (name, domain string, err error) {
	if p.Spec.HostnameOverride != nil {
		name = *p.Spec.HostnameOverride
		if faults := validation.IsDNS1123Subdomain(name); len(faults) > 0 {
			return "", "", fmt.Errorf("pod HostnameOverride %q is not a valid DNS subdomain: %s", name, strings.Join(faults, ";"))
		}
		name, err = cutHostname(p, name)
		return name, "", err
	}
	name = p.Name
	if p.Spec.Hostname != "" {
		if faults := validation.IsDNS1123Label(p.Spec.Hostname); len(faults) > 0 {
			return "", "", fmt.Errorf("pod Hostname %q is not a valid DNS label: %s", p.Spec.Hostname, strings.Join(faults, ";"))
		}
		name = p.Spec.Hostname
	}
	if name, err = cutHostname(p, name); err != nil {
		return "", "", err
	}
	if p.Spec.Subdomain != "" {
		if faults := validation.IsDNS1123Label(p.Spec.Subdomain); len(faults) > 0 {
			return "", "", fmt.Errorf("pod Subdomain %q is not a valid DNS label: %s", p.Spec.Subdomain, strings.Join(faults, ";"))
		}
		domain = p.Spec.Subdomain + "." + p.Namespace + ".svc." + m.ClusterDomain
	}
	return name, domain, nil
}

// cutHostname limits a name to the 63 bytes that the kernel allows in addition to the terminating
// zero; the result does not end with a dash or a dot.
func cutHostname(p *v1.Pod, name string) (string, error) {
	const longest = 63
	if len(name) <= longest {
		return name, nil
	}
	cut := strings.TrimRight(name[:longest], "-.")
	if cut == "" {
		return "", fmt.Errorf("hostname for pod %q was invalid: %q", p.Name, name)
	}
	return cut, nil
}

// kernelHostname returns PodSandboxConfig.Hostname: the short name, or the full name if the pod
// requests it and it fits into the kernel's 64 bytes.
func kernelHostname(p *v1.Pod, m Machine) (string, error) {
	name, domain, err := Hostname(p, m)
	if err != nil {
		return "", err
	}
	if domain == "" || p.Spec.SetHostnameAsFQDN == nil || !*p.Spec.SetHostnameAsFQDN {
		return name, nil
	}
	const longest = 64
	full := name + "." + domain
	if len(full) > longest {
		return "", fmt.Errorf("failed to construct FQDN from pod hostname and cluster domain, FQDN %s is too long (%d characters is the max, %d characters requested)", full, longest, len(full))
	}
	return full, nil
}
