package node

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/syncloop/podcerts"
)

// podCertificates creates the manager that gets pods' certificates signed, with the node's
// credential.
func (n *Node) podCertificates() (*podcerts.Manager, error) {
	core := n.cluster.Client.CoreV1()
	return podcerts.New(podcerts.Config{
		Client: n.cluster.Client, NodeName: n.name,
		Node: boundVolumes{core, n.name}.Node, ServiceAccount: serviceAccounts{core}.ServiceAccount,
		Event: func(p *v1.Pod, reason, message string) {
			podEvents{n.recorder}.Event(p, "", v1.EventTypeWarning, reason, message)
		},
	})
}
