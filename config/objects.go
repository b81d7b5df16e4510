package config

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// nodeNameSign is the placeholder for the node's name in the template's files and its providerID.
const nodeNameSign = "{nodeName}"

// Complete sets the defaults of a host that was made of the template and of an object's fields
// (name, endpoint, node, login), and returns its mistakes, with paths below at.
func Complete(at *field.Path, h *Host) field.ErrorList {
	for _, file := range []*string{&h.Kubeconfig, &h.ProviderID, &h.Server.TLSCertFile, &h.Server.TLSPrivateKeyFile} {
		*file = strings.ReplaceAll(*file, nodeNameSign, h.NodeName)
	}
	c := BowlineConfiguration{Hosts: []Host{*h}}
	setDefaults(&c)
	*h = c.Hosts[0]
	return append(validateHost(at, h), validateSettings(at, &h.NodeSettings)...)
}

// AddTaints adds taints to the host's. Of two with the same key and effect, the last one counts.
func (h *Host) AddTaints(more []v1.Taint) { h.Taints = mergeTaints(h.Taints, more) }

func validateHostObjects(p *field.Path, o *HostObjects) field.ErrorList {
	var errs field.ErrorList
	if o.Namespace == "" {
		errs = append(errs, field.Required(p.Child("namespace"), "the namespace of the Secrets that Host objects name"))
	} else {
		errs = append(errs, messages(p.Child("namespace"), o.Namespace, validation.IsDNS1123Label(o.Namespace))...)
	}
	if r := o.Replicas; r != nil && r.Name != "" {
		errs = append(errs, messages(p.Child("replicas", "name"), r.Name, validation.IsDNS1123Subdomain(r.Name))...)
	}
	if o.Replicas != nil && o.AllowLocal {
		errs = append(errs, field.Forbidden(p.Child("allowLocal"), "with replicas, a local socket would be on a different machine in each of them"))
	}
	t := p.Child("template")
	for _, f := range []struct {
		path *field.Path
		set  bool
	}{
		{t.Child("name"), o.Template.Name != ""},
		{t.Child("endpoint"), o.Template.Endpoint != ""},
		{t.Child("nodeName"), o.Template.NodeName != ""},
		{t.Child("nodeIP"), o.Template.NodeIP != ""},
		{t.Child("kubeletExposure"), o.Template.KubeletExposure != ""},
		{t.Child("ssh", "hostKeys"), len(o.Template.SSH.HostKeys) > 0},
		{t.Child("ssh", "secret"), o.Template.SSH.Secret != nil},
	} {
		if f.set {
			errs = append(errs, field.Forbidden(f.path, "each Host object has its own"))
		}
	}
	if len(errs) > 0 {
		return errs
	}
	// What is wrong for a sample machine is wrong in the template.
	some := o.Template
	some.Name, some.NodeName, some.Endpoint = "some", "some", "ssh://root@some/run/containerd/containerd.sock"
	some.SSH.HostKeys = []string{"SHA256:" + strings.Repeat("A", 43)}
	return Complete(t, &some)
}

func (o *HostObjects) resolvePaths(dir string) {
	if o == nil {
		return
	}
	c := BowlineConfiguration{Kubeconfig: o.Kubeconfig, Hosts: []Host{o.Template}}
	c.resolvePaths(dir)
	o.Kubeconfig, o.Template = c.Kubeconfig, c.Hosts[0]
}
