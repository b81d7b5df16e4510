package config

import (
	"fmt"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// validateSSH: settings for remote hosts are not allowed for local ones.
func validateSSH(p *field.Path, h *Host) field.ErrorList {
	var errs field.ErrorList
	if h.LinkGrace.Duration < time.Second {
		errs = append(errs, field.Invalid(p.Child("linkGrace"), h.LinkGrace.Duration.String(), "at least 1s"))
	}
	published := p.Child("server", "publishedAddress")
	if a := h.Server.PublishedAddress; a != "" {
		if ip, err := netip.ParseAddr(a); err != nil || ip.IsUnspecified() || ip.IsMulticast() {
			errs = append(errs, field.Invalid(published, a, "not a reachable IP address"))
		}
	}
	if h.Remote() {
		if h.NodeName == "" {
			errs = append(errs, field.Required(p.Child("nodeName"), "set nodeName for an ssh:// endpoint: otherwise the hostname of the remote host would decide which node it is"))
		}
		errs = append(errs, validateSecret(p.Child("ssh"), &h.SSH)...)
		errs = append(errs, validateJumps(p.Child("ssh"), &h.SSH)...)
		return append(errs, validateHostKeys(p.Child("ssh"), &h.SSH)...)
	}
	if !reflect.DeepEqual(h.SSH, SSH{}) {
		errs = append(errs, field.Forbidden(p.Child("ssh"), "the endpoint is not ssh://"))
	}
	if h.Server.PublishedAddress != "" {
		errs = append(errs, field.Forbidden(published, "only for remote hosts: nodeIP sets the address of the node"))
	}
	return errs
}

func validateSecret(p *field.Path, s *SSH) field.ErrorList {
	if s.Secret == nil {
		return nil
	}
	at := p.Child("secret")
	var errs field.ErrorList
	for _, f := range []struct {
		name, value string
		check       func(string) []string
	}{
		{"namespace", s.Secret.Namespace, validation.IsDNS1123Label},
		{"name", s.Secret.Name, validation.IsDNS1123Subdomain},
	} {
		if f.value == "" {
			errs = append(errs, field.Required(at.Child(f.name), "it names the Secret with the key"))
			continue
		}
		errs = append(errs, messages(at.Child(f.name), f.value, f.check(f.value))...)
	}
	for _, f := range []struct{ name, value string }{{"identityFile", s.IdentityFile}, {"certificateFile", s.CertificateFile},
		{"passphraseFile", s.PassphraseFile}, {"agentSocket", s.AgentSocket}} {
		if f.value != "" {
			errs = append(errs, field.Forbidden(p.Child(f.name), "the key, its passphrase and its certificate are in the secret"))
		}
	}
	return errs
}

func validateHostKeys(p *field.Path, s *SSH) field.ErrorList {
	if len(s.HostKeys) == 0 && len(s.KnownHosts) == 0 && s.ConfigFile == "" {
		return field.ErrorList{field.Required(p.Child("hostKeys"), "pin the host keys here, or set knownHosts; \"bowline host scan\" prints the keys")}
	}
	var errs field.ErrorList
	for i, key := range s.HostKeys {
		if err := endpoint.CheckHostKey(key); err != nil {
			errs = append(errs, field.Invalid(p.Child("hostKeys").Index(i), key, hint.Text(err)))
		}
	}
	return errs
}

func validateJumps(p *field.Path, s *SSH) field.ErrorList {
	var errs field.ErrorList
	if len(s.Jumps) > 0 && s.ProxyJump != "" {
		errs = append(errs, field.Forbidden(p.Child("proxyJump"), "jumps are the way to the host"))
	}
	for i, j := range Way(s.Jumps) {
		if err := j.Check(); err != nil {
			errs = append(errs, field.Invalid(p.Child("jumps").Index(i), j.String(), hint.Text(err)))
		}
	}
	return errs
}

// validateEndpoint accepts unix sockets, local or over SSH.
func validateEndpoint(p *field.Path, raw string) field.ErrorList {
	const want = "schemes are: unix, ssh; write unix:///run/containerd/containerd.sock, the bare path, or ssh://root@worker/run/containerd/containerd.sock"
	if strings.HasPrefix(raw, "ssh://") {
		u, err := endpoint.Parse(raw)
		if err != nil {
			return field.ErrorList{field.Invalid(p, raw, hint.Text(err))}
		}
		return machinePath(p, u.Socket)
	}
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(p, raw, "not a URL; "+want)}
	case u.Scheme == "":
		return field.ErrorList{field.Invalid(p, raw, "neither a URL nor an absolute path; "+want)}
	case u.Scheme != "unix":
		return field.ErrorList{field.Invalid(p, raw, fmt.Sprintf("the scheme is %q; %s", u.Scheme, want))}
	case u.Host != "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil || strings.ContainsAny(raw, "%?#"):
		return field.ErrorList{field.Invalid(p, raw, "only a path follows unix://, so with three slashes; "+want)}
	case len(u.Path) > 107:
		return field.ErrorList{field.Invalid(p, raw, "a unix socket's path has at most 107 bytes")}
	}
	return machinePath(p, u.Path)
}
