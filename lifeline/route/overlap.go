package route

import (
	"net/netip"

	"github.com/bowline-k8s/bowline/lifeline/flow"
)

// Conflict is a prefix that a helper would redirect and a network of its host that shares addresses with it.
type Conflict struct {
	Cluster, Network netip.Prefix
}

// Overlap returns the networks of a host that a helper would make unreachable, with the prefixes of the
// cluster that are to blame. networks are those that the host is connected to or has a route to; a default
// route is none. What the table leaves alone is no conflict.
func Overlap(t flow.Table, networks []netip.Prefix) (found []Conflict) {
	for _, cluster := range t.Cluster {
		for _, network := range networks {
			network = unmapped(network).Masked()
			if !network.IsValid() || network.Bits() == 0 || !network.Overlaps(cluster) {
				continue
			}
			shared := cluster
			if network.Bits() > cluster.Bits() {
				shared = network
			}
			if !covered(shared, t.Local) {
				found = append(found, Conflict{cluster, network})
			}
		}
	}
	return found
}
