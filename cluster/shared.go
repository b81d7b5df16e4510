package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/provider/clusterwide"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// Shared shares what the nodes of this process read from their clusters.
var Shared clusterwide.Shared

// identities are the identities of the clusters that nodes of this process have seen. A witness may
// change while the cluster stays the same: the Service default/kubernetes is recreated, or is missing
// for a while.
type identities struct {
	mu    sync.Mutex
	first map[clusterwide.Cluster]string // by a witness in UID; the first witness of the same cluster
}

// clusters are those of this process.
var clusters identities

// of returns the cluster of c's server and trust with these witnesses, which all belong to one
// cluster. Its UID stays the same as long as each call shares one witness with an earlier one.
func (i *identities) of(c clusterwide.Cluster, witnesses ...string) clusterwide.Cluster {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.first == nil {
		i.first = map[clusterwide.Cluster]string{}
	}
	witnesses = slices.DeleteFunc(slices.Clone(witnesses), func(w string) bool { return w == "" })
	c.UID = ""
	for _, w := range witnesses {
		c.UID = cmp.Or(c.UID, i.first[clusterwide.Cluster{UID: w, Server: c.Server, Trust: c.Trust}])
	}
	if c.UID == "" && len(witnesses) > 0 {
		c.UID = witnesses[0]
	}
	for _, w := range witnesses {
		i.first[clusterwide.Cluster{UID: w, Server: c.Server, Trust: c.Trust}] = c.UID
	}
	return c
}

// has reports whether a node of this process has seen the witness at c's server.
func (i *identities) has(c clusterwide.Cluster, witness string) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	c.UID = witness
	return i.first[c] != ""
}

// share sets what the nodes of the cluster have in common. record is an owner file of this cluster,
// or nil.
func (c *Connection) share(record *owner.Record) {
	witnesses := []string{c.Witnesses.Service, c.Witnesses.Node}
	if record != nil {
		witnesses = append(witnesses, record.ClusterUID, record.Witnesses.Service, record.Witnesses.Node)
	}
	c.Shared = clusters.of(c.Shared, witnesses...)
}

// KnownBy returns everything that identifies the cluster now, without repeats.
func (c *Connection) KnownBy() []string {
	by := []string{c.UID, c.Shared.UID, c.Witnesses.Service, c.Witnesses.Node}
	if c.known != nil {
		by = append(by, c.known.Witnesses.Service, c.known.Witnesses.Node)
	}
	slices.Sort(by)
	return slices.DeleteFunc(slices.Compact(by), func(w string) bool { return w == "" })
}

// recorded returns the owner file if it is of this cluster and tells more than the Service does.
func (c *Connection) recorded(ctx context.Context, known func(context.Context) *owner.Record) *owner.Record {
	if known == nil || clusters.has(c.Shared, c.Witnesses.Service) {
		return nil
	}
	if record := known(ctx); record != nil && record.Compare(c.UID, c.Witnesses) == owner.Same {
		return record
	}
	return nil
}

// sharedBy returns what nodes must agree on to read through one client: the API server's address,
// the cluster's UID, and how the API server is trusted. UID and trust alone do not suffice: a
// cluster restored from a backup has the UID and the certificates of the original. Permissions may
// differ, so each node proves its own.
func sharedBy(server *rest.Config, uid string) (clusterwide.Cluster, error) {
	address, _, err := rest.DefaultServerUrlFor(server)
	if err != nil {
		return clusterwide.Cluster{}, err
	}
	c := clusterwide.Cluster{UID: uid, Server: strings.TrimSuffix(address.String(), "/")}
	if server.Proxy != nil { // behind a proxy, the same address may be another server
		proxy, err := server.Proxy(&http.Request{URL: address})
		if err != nil {
			return c, fmt.Errorf("proxy: %w", err)
		}
		if proxy != nil {
			c.Server += " by " + proxy.String()
		}
	}
	c.Trust, err = trustOf(server)
	return c, err
}

// trustOf returns a string that identifies how an API server is verified: whether it is verified at
// all, the name that its certificate must have, and the CA certificates. No CA certificates means
// the system's trust store.
func trustOf(server *rest.Config) (string, error) {
	data := server.CAData
	if len(data) == 0 && server.CAFile != "" {
		var err error
		if data, err = os.ReadFile(server.CAFile); err != nil {
			return "", fmt.Errorf("certificate authority: %w", err)
		}
	}
	sum := sha256.New()
	for {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		fmt.Fprintf(sum, "%d ", len(block.Bytes))
		sum.Write(block.Bytes)
	}
	return fmt.Sprintf("insecure=%t name=%s ca=%s", server.Insecure, server.ServerName, hex.EncodeToString(sum.Sum(nil))), nil
}
