package node

import (
	"fmt"
	"sync"
)

// nodeNames registers the node names of this process's hosts. The configuration alone cannot prove
// them distinct: a host without NodeName takes its hostname. Two hosts under one node name would
// each run every pod of that node.
type nodeNames struct {
	mu    sync.Mutex
	hosts map[string]string // by cluster UID and node name
}

// drivenNodes are the nodes of this process.
var drivenNodes nodeNames

// take registers host as a node of a cluster, until giveBack is called.
func (n *nodeNames) take(clusterUID, node, host string) (giveBack func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := clusterUID + "/" + node
	if other, taken := n.hosts[key]; taken {
		return nil, fmt.Errorf("host %[2]s already uses the node name %[1]q: set nodeName for one of them", node, other)
	}
	if n.hosts == nil {
		n.hosts = map[string]string{}
	}
	n.hosts[key] = host
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.hosts, key)
	}, nil
}
