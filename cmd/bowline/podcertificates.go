package main

import (
	v1 "k8s.io/api/core/v1"

	"github.com/bowline-k8s/bowline/syncloop/podcerts"
)

// podCertificates has certificates signed for pods, as the node.
func (n *node) podCertificates() (*podcerts.Manager, error) {
	core := n.cluster.client.CoreV1()
	return podcerts.New(podcerts.Config{
		Client: n.cluster.client, NodeName: n.name,
		Node: boundVolumes{core, n.name}.Node, ServiceAccount: serviceAccounts{core}.ServiceAccount,
		Event: func(p *v1.Pod, reason, message string) {
			podEvents{n.recorder}.Event(p, "", v1.EventTypeWarning, reason, message)
		},
	})
}
