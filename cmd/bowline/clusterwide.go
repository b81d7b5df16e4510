package main

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

// readClusters has what the nodes of this process read of their clusters together.
var readClusters clusterwide.Shared

// sharedBy is what nodes have in common that may read by one client: the address of the API
// server, the cluster that it says it is, and by what it is trusted. A restored cluster says
// that it is the first, with the same certificates. Who it lets read
// differs: each node shows that it may.
func sharedBy(server *rest.Config, uid string) (clusterwide.Cluster, error) {
	address, _, err := rest.DefaultServerUrlFor(server)
	if err != nil {
		return clusterwide.Cluster{}, err
	}
	c := clusterwide.Cluster{UID: uid, Server: strings.TrimSuffix(address.String(), "/")}
	if server.Proxy != nil { // behind which an address may be another's
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

// trustOf is one text for each way to verify an API server: whether it is done at all, the
// name that its certificate has to bear, and the certificates that it is verified by; none
// are those of this machine's system.
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
