package spec

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// The first lines by which programs (and the e2e suite) recognise a managed file.
const (
	hostsHeader            = "# Kubernetes-managed hosts file.\n"
	hostsHeaderHostNetwork = "# Kubernetes-managed hosts file (host network).\n"
	hostsLoopback          = "127.0.0.1\tlocalhost\n" +
		"::1\tlocalhost ip6-localhost ip6-loopback\n" +
		"fe00::0\tip6-localnet\n" +
		"fe00::0\tip6-mcastprefix\n" +
		"fe00::1\tip6-allnodes\n" +
		"fe00::2\tip6-allrouters\n"
)

// HostsFile returns the pod's /etc/hosts. base is the host's own hosts file, which a pod on the
// host network gets; other pods get their names at podIPs. It fails if the spec's host name is
// invalid.
func HostsFile(p *v1.Pod, m Machine, podIPs []string, base []byte) ([]byte, error) {
	var b strings.Builder
	if p.Spec.HostNetwork {
		b.WriteString(hostsHeaderHostNetwork)
		b.Write(base)
	} else {
		name, domain, err := Hostname(p, m)
		if err != nil {
			return nil, err
		}
		names := name
		if domain != "" {
			names = name + "." + domain + "\t" + name
		}
		b.WriteString(hostsHeader + hostsLoopback)
		for _, ip := range podIPs {
			b.WriteString(ip + "\t" + names + "\n")
		}
	}
	if len(p.Spec.HostAliases) > 0 {
		b.WriteString("\n# Entries added by HostAliases.\n")
		for _, alias := range p.Spec.HostAliases {
			b.WriteString(alias.IP + "\t" + strings.Join(alias.Hostnames, "\t") + "\n")
		}
	}
	return []byte(b.String()), nil
}

// ManagesHosts reports whether we manage the container's /etc/hosts: not before the pod has an
// address, and not if the container mounts its own.
func ManagesHosts(p *v1.Pod, c *v1.Container, podIPs []string) bool {
	if len(podIPs) == 0 && !p.Spec.HostNetwork {
		return false
	}
	for i := range c.VolumeMounts {
		if c.VolumeMounts[i].MountPath == etcHosts {
			return false
		}
	}
	return true
}

const etcHosts = "/etc/hosts"
