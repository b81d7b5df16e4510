package cluster

import (
	_ "embed"
	"strings"
	"text/template"

	"github.com/bowline-k8s/bowline/lab/layout"
)

//go:embed objects.yaml
var objects string

var objectsTemplate = template.Must(template.New("objects.yaml").Parse(objects))

// Objects renders the objects that a fresh cluster gets: the API server's right to call nodes,
// kube-proxy's rights, the pod network of each host, and CoreDNS.
func Objects(lab layout.Lab) (string, error) {
	var b strings.Builder
	err := objectsTemplate.Execute(&b, map[string]any{
		"DNS":      lab.DNSServiceIP(),
		"Domain":   layout.Domain,
		"Registry": layout.Registry,
		"Hosts":    lab.Hosts(layout.MaxHosts),
	})
	return b.String(), err
}
