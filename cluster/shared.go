package cluster

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"net/http"
	"os"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/provider/clusterwide"
)

// Shared shares what the nodes of this process read from their clusters.
var Shared clusterwide.Shared

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
