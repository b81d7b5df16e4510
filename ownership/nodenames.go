package ownership

import (
	"fmt"
	"sync"

	"github.com/bowline-k8s/bowline/hint"
)

// nodeNames are the node names of a process's hosts. The configuration alone cannot prove them
// distinct: a host without NodeName takes its hostname. Two hosts under one node name would each
// run every pod of that node.
type nodeNames struct {
	mu    sync.Mutex
	hosts map[string]string // by what identifies the cluster, and node name
}

// ofProcess are the node names of this process.
var ofProcess nodeNames

// ReserveNodeName reserves the name of a node of a cluster for a host of this process, until free is
// called. It fails if another host has the name. clusters are all by which the cluster is known: one in
// common with another host is enough.
func ReserveNodeName(clusters []string, node, host string) (free func(), err error) {
	return ofProcess.reserve(clusters, node, host)
}

func (n *nodeNames) reserve(clusters []string, node, host string) (free func(), err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, c := range clusters {
		if other, taken := n.hosts[c+"/"+node]; taken {
			return nil, hint.Add(fmt.Errorf("host %s already uses the node name %q", other, node), "set nodeName for one of them")
		}
	}
	if n.hosts == nil {
		n.hosts = map[string]string{}
	}
	for _, c := range clusters {
		n.hosts[c+"/"+node] = host
	}
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		for _, c := range clusters {
			delete(n.hosts, c+"/"+node)
		}
	}, nil
}
