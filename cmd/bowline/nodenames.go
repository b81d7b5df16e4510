package main

import (
	"fmt"
	"sync"
)

// nodeNames are the nodes that the hosts of this process are. The configuration
// cannot tell them all apart: a host without a nodeName is called as its machine is.
// Two machines that are one node would run each pod of it twice.
type nodeNames struct {
	mu    sync.Mutex
	hosts map[string]string // by cluster UID and node name
}

// drivenNodes are those of this process.
var drivenNodes nodeNames

// take makes a host the node of a cluster, until it is given back.
func (n *nodeNames) take(clusterUID, node, host string) (giveBack func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	key := clusterUID + "/" + node
	if other, taken := n.hosts[key]; taken {
		return nil, fmt.Errorf("the node %q is that of host %s already: two machines have one name; set nodeName for one of them", node, other)
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
