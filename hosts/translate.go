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

// nodeName is the name of the node that a Host is.
func nodeName(h *v1alpha1.Host) string { return cmp.Or(h.Spec.NodeName, h.Name) }

// far tells whether the machine is another than this one.
func far(h *v1alpha1.Host) bool { return strings.HasPrefix(h.Spec.Endpoint, "ssh://") }

// secretName is the Secret that the login takes, or empty.
func secretName(h *v1alpha1.Host) string {
	if h.Spec.CredentialsSecretRef == nil || !far(h) {
		return ""
	}
	return h.Spec.CredentialsSecretRef.Name
}

// Translate makes a host of an object and of the template; the Secret that the object
// names is in namespace, where the account of kubeconfig may get it. The error lists
// what is wrong, by the object's own fields.
func Translate(h *v1alpha1.Host, template *config.Host, namespace, kubeconfig string) (*config.Host, error) {
	cfg := *template
	cfg.Name, cfg.HostObject, cfg.NodeName = h.Name, h.Name, nodeName(h)
	cfg.Endpoint = h.Spec.Endpoint
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
	login(&cfg, h, namespace)
	errs := config.Complete(field.NewPath("spec"), &cfg)
	if cfg.SSH.Secret != nil {
		cfg.SSH.Secret.Kubeconfig = kubeconfig // of no node: a node may not read it
	}
	if far(h) && cfg.SSH.Secret == nil && cfg.SSH.IdentityFile == "" && cfg.SSH.AgentSocket == "" && cfg.SSH.ConfigFile == "" {
		errs = append(errs, field.Required(field.NewPath("spec", "credentialsSecretRef"), fmt.Sprintf(
			"name a Secret of the namespace %s with the key of the login: kubectl create secret generic NAME -n %s --type=kubernetes.io/ssh-auth --from-file=ssh-privatekey=FILE", namespace, namespace)))
	}
	errs = append(errs, policy(&cfg, h.Spec.Policy)...)
	if len(errs) > 0 {
		return nil, inFieldsOfHost(errs)
	}
	return &cfg, nil
}

func login(cfg *config.Host, h *v1alpha1.Host, namespace string) {
	if !far(h) {
		cfg.SSH, cfg.Server.PublishedAddress = config.SSH{}, ""
		return
	}
	cfg.SSH.HostKeys = h.Spec.HostKeys
	if name := secretName(h); name != "" {
		cfg.SSH.IdentityFile, cfg.SSH.CertificateFile, cfg.SSH.PassphraseFile, cfg.SSH.AgentSocket = "", "", "", ""
		cfg.SSH.Secret = &config.SSHSecret{Namespace: namespace, Name: name}
	}
}

// policy refuses what would not be kept: who forbids must not be made to believe that
// it is forbidden.
func policy(_ *config.Host, p *v1alpha1.Policy) field.ErrorList {
	if p == nil {
		return nil
	}
	var errs field.ErrorList
	at := field.NewPath("spec", "policy")
	for _, f := range []struct {
		name  string
		allow *bool
	}{{"allowPrivileged", p.AllowPrivileged}, {"allowHostPath", p.AllowHostPath}, {"allowHostNetwork", p.AllowHostNetwork}} {
		if f.allow != nil && !*f.allow {
			errs = append(errs, field.Forbidden(at.Child(f.name), "this version of Bowline does not keep pods from it; leave it out to drive the machine all the same"))
		}
	}
	return errs
}

// inFieldsOfHost has the fields of a Host object where they are called otherwise.
func inFieldsOfHost(errs field.ErrorList) error {
	for _, e := range errs {
		for _, as := range [][2]string{{"spec.ssh.hostKeys", "spec.hostKeys"}, {"spec.ssh.secret", "spec.credentialsSecretRef"}, {"spec.systemReserved", "spec.reserved"}} {
			if rest, ok := strings.CutPrefix(e.Field, as[0]); ok {
				e.Field = as[1] + rest
			}
		}
	}
	return errs.ToAggregate()
}
