package hosts

import (
	"cmp"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/config"
)

// nodeName is the name of a Host's node.
func nodeName(h *v1alpha1.Host) string { return cmp.Or(h.Spec.NodeName, h.Name) }

// remote reports whether the host is remote.
func remote(h *v1alpha1.Host) bool { return strings.HasPrefix(h.Spec.Endpoint, "ssh://") }

// secretName is the Secret with the login's key, or empty.
func secretName(h *v1alpha1.Host) string {
	if h.Spec.CredentialsSecretRef == nil || !remote(h) {
		return ""
	}
	return h.Spec.CredentialsSecretRef.Name
}

// Translate makes a config.Host of a Host object and the template. namespace has the Secret that
// the object names; the account of kubeconfig may get it. The error lists all mistakes by the
// object's own field names.
func Translate(h *v1alpha1.Host, template *config.Host, namespace, kubeconfig string) (*config.Host, error) {
	cfg := *template
	cfg.Name, cfg.HostObject, cfg.NodeName = h.Name, h.Name, nodeName(h)
	cfg.Endpoint, cfg.KubeletExposure, cfg.NodeIP = h.Spec.Endpoint, string(h.Spec.KubeletExposure), h.Spec.NodeIP
	if cfg.Exposed() { // the template's address is this process's own
		cfg.Server.Address, cfg.Server.PublishedAddress, cfg.Server.Port = "", "", 0
	}
	if len(h.Spec.Labels) > 0 {
		cfg.Labels = maps.Clone(template.Labels)
		if cfg.Labels == nil {
			cfg.Labels = map[string]string{}
		}
		maps.Copy(cfg.Labels, h.Spec.Labels)
	}
	cfg.AddTaints(h.Spec.Taints)
	if h.Spec.MaxPods != nil {
		cfg.MaxPods = *h.Spec.MaxPods
	}
	if len(h.Spec.Reserved) > 0 {
		cfg.SystemReserved = map[string]string{}
		for name, amount := range h.Spec.Reserved {
			cfg.SystemReserved[name] = string(amount)
		}
	}
	if h.Spec.LinkGrace != nil {
		cfg.LinkGrace = *h.Spec.LinkGrace
	}
	if p := h.Spec.Policy; p != nil {
		cfg.Policy = config.Policy{
			AllowPrivileged:  stricter(template.Policy.AllowPrivileged, p.AllowPrivileged),
			AllowHostPath:    stricter(template.Policy.AllowHostPath, p.AllowHostPath),
			AllowHostNetwork: stricter(template.Policy.AllowHostNetwork, p.AllowHostNetwork),
			AllowNFS:         stricter(template.Policy.AllowNFS, p.AllowNFS),
		}
	}
	login(&cfg, h, namespace)
	errs := config.Complete(field.NewPath("spec"), &cfg)
	if cfg.SSH.Secret != nil {
		cfg.SSH.Secret.Kubeconfig = kubeconfig // not that of the node: a node's account may not read the Secret
	}
	if remote(h) && cfg.SSH.Secret == nil && cfg.SSH.IdentityFile == "" && cfg.SSH.AgentSocket == "" && cfg.SSH.ConfigFile == "" {
		errs = append(errs, field.Required(field.NewPath("spec", "credentialsSecretRef"), fmt.Sprintf(
			"set a Secret of the namespace %s with the SSH key; create it: kubectl create secret generic NAME -n %s --type=kubernetes.io/ssh-auth --from-file=ssh-privatekey=FILE", namespace, namespace)))
	}
	if len(errs) > 0 {
		return nil, inFieldsOfHost(errs)
	}
	return &cfg, nil
}

func login(cfg *config.Host, h *v1alpha1.Host, namespace string) {
	if !remote(h) {
		cfg.SSH, cfg.Server.PublishedAddress = config.SSH{}, ""
		return
	}
	cfg.SSH.HostKeys = h.Spec.HostKeys
	if jumps := v1alpha1.Jumps(h); len(jumps) > 0 {
		cfg.SSH.ProxyJump, cfg.SSH.Jumps = "", nil
		for _, j := range jumps {
			cfg.SSH.Jumps = append(cfg.SSH.Jumps, config.SSHJump{User: j.User, Address: j.Address, Port: j.Port, HostKeys: j.HostKeys})
		}
	}
	if name := secretName(h); name != "" {
		cfg.SSH.IdentityFile, cfg.SSH.CertificateFile, cfg.SSH.PassphraseFile, cfg.SSH.AgentSocket = "", "", "", ""
		cfg.SSH.Secret = &config.SSHSecret{Namespace: namespace, Name: name}
	}
}

// stricter returns a if it forbids, else b. An unset value allows.
func stricter(a, b *bool) *bool {
	if a != nil && !*a {
		return a
	}
	return b
}

// inFieldsOfHost renames the fields of a config.Host to those of the Host object where they differ.
func inFieldsOfHost(errs field.ErrorList) error {
	for _, e := range errs {
		for _, as := range [][2]string{{"spec.ssh.hostKeys", "spec.hostKeys"}, {"spec.ssh.jumps", "spec.ssh.proxyJump"}, {"spec.ssh.secret", "spec.credentialsSecretRef"}, {"spec.systemReserved", "spec.reserved"}} {
			if rest, ok := strings.CutPrefix(e.Field, as[0]); ok {
				e.Field = as[1] + rest
			}
		}
	}
	return errs.ToAggregate()
}
