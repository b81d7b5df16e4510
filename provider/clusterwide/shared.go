package clusterwide

import (
	"sync"

	"k8s.io/client-go/kubernetes"
)

// Cluster is what nodes must have in common to share a client.
type Cluster struct {
	// UID tells clusters behind one server apart: the same for all nodes of one cluster.
	UID string
	// Server is the URL of the API server.
	Server string
	// Trust is what verifies the API server's certificate.
	Trust string
}

// Shared owns the views of all clusters that nodes of this process are in. The zero value is ready
// to use.
type Shared struct {
	mu    sync.Mutex
	views map[viewKey]*view
}

type viewKey struct {
	cluster Cluster
	kind    *kind
}

// join adds client to those that read k in c. leave removes it, closes the view if it was the last
// one, and returns when the client is no longer in use.
func (s *Shared) join(c Cluster, k *kind, client kubernetes.Interface) (_ *view, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, src := viewKey{c, k}, newSource(client)
	v := s.views[key]
	if v == nil {
		if v, err = newView(k); err != nil {
			return nil, nil, err
		}
		if s.views == nil {
			s.views = map[viewKey]*view{}
		}
		s.views[key] = v
	}
	v.sources.add(src)
	v.start() // after add, so that there is a client to read with
	return v, func() { s.leave(key, v, src) }, nil
}

func (s *Shared) leave(key viewKey, v *view, src *source) {
	s.mu.Lock()
	last := v.sources.remove(src)
	if last {
		delete(s.views, key) // a node that joins later lists again
	}
	s.mu.Unlock()
	if last {
		v.close()
	}
	src.uses.Wait()
}
