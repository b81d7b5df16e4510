package spec

import (
	"errors"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Limits on a resolv.conf, as in the kubelet. Resolvers are known to accept files within them.
const (
	maxNameservers     = 3
	maxSearches        = 32
	maxSearchChars     = 2048
	maxSearchPathChars = 253
)

// Warning is an event on the pod about a result that was produced nevertheless. Node is the message of
// the same event on the node; empty: it has none.
type Warning struct{ Reason, Message, Node string }

// DNS returns the pod's resolver configuration (PodSandboxConfig.DnsConfig), with warnings about
// the entries that it had to omit. It fails if the host's resolv.conf cannot be parsed.
func DNS(p *v1.Pod, m Machine) (*runtimeapi.DNSConfig, []Warning, error) {
	base, err := ParseResolvConf(m.HostResolv)
	if err != nil {
		return nil, nil, fmt.Errorf("read the host's resolv.conf: %w", err)
	}
	var warnings []Warning
	config := &runtimeapi.DNSConfig{Servers: base.Nameservers, Searches: base.Searches, Options: base.Options}
	switch policy := p.Spec.DNSPolicy; {
	case policy == v1.DNSNone:
		config = &runtimeapi.DNSConfig{}
	case policy == v1.DNSDefault, policy == v1.DNSClusterFirst && p.Spec.HostNetwork:
		// The host's own settings.
	case len(m.ClusterDNS) == 0:
		message := fmt.Sprintf("node does not have ClusterDNS IP configured and cannot create Pod using %q policy. Falling back to %q policy.",
			v1.DNSClusterFirst, v1.DNSDefault)
		warnings = append(warnings, Warning{"MissingClusterDNS", fmt.Sprintf("pod: %q. %s", podFormat(p), message), message})
	default: // ClusterFirst, ClusterFirstWithHostNet, and unknown policies
		config.Servers = append([]string(nil), m.ClusterDNS...)
		config.Searches = clusterSearches(p.Namespace, m.ClusterDomain, base.Searches)
		config.Options = []string{"ndots:5"}
	}
	if own := p.Spec.DNSConfig; own != nil {
		config.Servers = unique(config.Servers, own.Nameservers)
		config.Searches = unique(config.Searches, own.Searches)
		config.Options = withOptions(config.Options, own.Options)
	}
	return config, append(warnings, fitDNS(config)...), nil
}

func clusterSearches(namespace, domain string, host []string) []string {
	if domain == "" {
		return host
	}
	return unique([]string{namespace + ".svc." + domain, "svc." + domain, domain}, host)
}

// fitDNS removes what exceeds the limits, and warns about it.
func fitDNS(config *runtimeapi.DNSConfig) []Warning {
	var warnings []Warning
	if len(config.Servers) > maxNameservers {
		config.Servers = config.Servers[:maxNameservers]
		warnings = append(warnings, Warning{Reason: "DNSConfigForming", Message: "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: " + strings.Join(config.Servers, " ")})
	}
	if kept := fitSearches(config.Searches); len(kept) < len(config.Searches) {
		config.Searches = kept
		warnings = append(warnings, Warning{Reason: "DNSConfigForming", Message: "Search Line limits were exceeded, some search paths have been omitted, the applied search line is: " + strings.Join(kept, " ")})
	}
	return warnings
}

// fitSearches keeps the first paths that fit: 32 paths, 2048 characters in total. It drops a path
// longer than a domain name can be, as some resolvers abort on it.
func fitSearches(searches []string) []string {
	var kept []string
	chars := 0
	for i, search := range searches {
		if i == maxSearches {
			break
		}
		if len(search) > maxSearchPathChars {
			continue
		}
		if len(kept) > 0 {
			chars++
		}
		if chars += len(search); chars > maxSearchChars {
			break
		}
		kept = append(kept, search)
	}
	return kept
}

// clusterSearchPaths is how many search paths clusterSearches puts before the host's.
const clusterSearchPaths = 3

// CheckResolvConf returns why pods cannot get the whole of the host's resolv.conf,
// which was read from file; empty if they can.
func CheckResolvConf(text []byte, file, clusterDomain string) string {
	conf, err := ParseResolvConf(text)
	if err != nil {
		return err.Error()
	}
	most := maxSearches
	if clusterDomain != "" {
		most -= clusterSearchPaths
	}
	if len(conf.Searches) > most {
		return fmt.Sprintf("%s has more than %d search domains, and pods get no more than these", file, most)
	}
	for _, search := range conf.Searches {
		if len(search) > maxSearchPathChars {
			return fmt.Sprintf("%s has a search domain of more than %d characters, which pods do not get", file, maxSearchPathChars)
		}
	}
	if len(strings.Join(conf.Searches, " ")) > maxSearchChars {
		return fmt.Sprintf("%s has search domains of more than %d characters, and pods get no more than these", file, maxSearchChars)
	}
	return ""
}

// unique joins lists and keeps the first occurrence of each string.
func unique(lists ...[]string) []string {
	seen := map[string]bool{}
	var out []string
	for _, list := range lists {
		for _, s := range list {
			if !seen[s] {
				seen[s] = true
				out = append(out, s)
			}
		}
	}
	return out
}

// withOptions adds the pod's options to the given ones; a repeated option keeps its position and
// gets the later value.
func withOptions(options []string, own []v1.PodDNSConfigOption) []string {
	for _, o := range own {
		option := o.Name
		if o.Value != nil && *o.Value != "" {
			option += ":" + *o.Value
		}
		options = setOption(options, option)
	}
	return options
}

func setOption(options []string, option string) []string {
	name, _, _ := strings.Cut(option, ":")
	for i, have := range options {
		if n, _, _ := strings.Cut(have, ":"); n == name {
			options[i] = option
			return options
		}
	}
	return append(options, option)
}

// ResolvConf is the content of a resolv.conf.
type ResolvConf struct {
	Nameservers []string // all of them, in order
	Searches    []string // of the last search line, without trailing dots
	Options     []string // each name once, with its last value
}

// ParseResolvConf parses resolv.conf(5). It skips unknown lines; a nameserver line without an
// address is an error.
func ParseResolvConf(text []byte) (ResolvConf, error) {
	var conf ResolvConf
	var faults []error
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0][0] == '#' {
			continue
		}
		switch rest := fields[1:]; fields[0] {
		case "nameserver":
			if len(rest) == 0 {
				faults = append(faults, errors.New("a nameserver line has no address"))
				continue
			}
			conf.Nameservers = append(conf.Nameservers, rest[0])
		case "search":
			conf.Searches = nil
			for _, s := range rest {
				if s != "." {
					conf.Searches = append(conf.Searches, strings.TrimSuffix(s, "."))
				}
			}
		case "options":
			for _, o := range rest {
				conf.Options = setOption(conf.Options, o)
			}
		}
	}
	return conf, errors.Join(faults...)
}
