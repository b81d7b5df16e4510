package spec

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// ServiceEnv returns the environment variables of Services for a pod, sorted by Service name: always
// those of the API server's Service (default/kubernetes), and with links those of the pod's
// namespace.
func ServiceEnv(services []*v1.Service, namespace string, links bool) []EnvVar {
	chosen := map[string]*v1.Service{}
	for _, s := range services {
		if !hasClusterIP(s) {
			continue
		}
		master := s.Namespace == v1.NamespaceDefault && s.Name == "kubernetes"
		switch {
		case links && s.Namespace == namespace:
			chosen[s.Name] = s
		case master && chosen[s.Name] == nil:
			chosen[s.Name] = s
		}
	}
	var out []EnvVar
	for _, name := range slices.Sorted(maps.Keys(chosen)) {
		out = append(out, serviceVars(chosen[name])...)
	}
	return out
}

func hasClusterIP(s *v1.Service) bool {
	return s.Spec.ClusterIP != "" && s.Spec.ClusterIP != v1.ClusterIPNone
}

func serviceVars(s *v1.Service) []EnvVar {
	if len(s.Spec.Ports) == 0 {
		return nil
	}
	prefix, ip := envName(s.Name), s.Spec.ClusterIP
	out := []EnvVar{
		{prefix + "_SERVICE_HOST", ip},
		{prefix + "_SERVICE_PORT", number(s.Spec.Ports[0].Port)},
	}
	for _, port := range s.Spec.Ports {
		if port.Name != "" {
			out = append(out, EnvVar{prefix + "_SERVICE_PORT_" + envName(port.Name), number(port.Port)})
		}
	}
	// The variables that Docker links used to create.
	for i, port := range s.Spec.Ports {
		protocol := string(port.Protocol)
		if protocol == "" {
			protocol = string(v1.ProtocolTCP)
		}
		lower := strings.ToLower(protocol)
		url := lower + "://" + hostPort(ip, port.Port)
		if i == 0 {
			out = append(out, EnvVar{prefix + "_PORT", url})
		}
		name := prefix + "_PORT_" + number(port.Port) + "_" + strings.ToUpper(protocol)
		out = append(out,
			EnvVar{name, url},
			EnvVar{name + "_PROTO", lower},
			EnvVar{name + "_PORT", number(port.Port)},
			EnvVar{name + "_ADDR", ip})
	}
	return out
}

func envName(s string) string { return strings.ToUpper(strings.ReplaceAll(s, "-", "_")) }

func number(n int32) string { return strconv.FormatInt(int64(n), 10) }

func hostPort(ip string, port int32) string {
	if strings.Contains(ip, ":") {
		return "[" + ip + "]:" + number(port)
	}
	return ip + ":" + number(port)
}
