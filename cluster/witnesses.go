package cluster

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"os"
	"slices"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// Name names the cluster of w in a message.
func Name(w owner.Witnesses) string {
	return "cluster " + cmp.Or(w.Service, "without a UID (the Service default/kubernetes is missing)")
}

// Witnesses reads what tells this cluster from others: the Service default/kubernetes, the Node, if
// it exists, and the CA of the credential. A node may not read namespaces, and may read the
// ConfigMap kube-root-ca.crt only if one of its pods mounts it. The returned Node is nil if it does
// not exist. The Service may be missing if the Node exists: someone deleted it, and kube-apiserver
// recreates it soon.
func Witnesses(ctx context.Context, client kubernetes.Interface, credential *rest.Config, nodeName string) (owner.Witnesses, *v1.Node, error) {
	service, err := client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil {
		err = fmt.Errorf("read the Service default/kubernetes, which identifies the cluster: %w", err)
		if !missing {
			return owner.Witnesses{}, nil, err
		}
	}
	w := owner.Witnesses{CA: fingerprints(credential)}
	if !missing {
		w.Service = string(service.UID)
	}
	node, errNode := client.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(errNode) && missing:
		return owner.Witnesses{}, nil, err
	case apierrors.IsNotFound(errNode):
		return w, nil, nil
	case errNode != nil:
		return owner.Witnesses{}, nil, fmt.Errorf("read the Node %q: %w", nodeName, errNode)
	}
	w.Node = string(node.UID)
	return w, node, nil
}

// mostFingerprints is how many CAs of one bundle are compared; no cluster has as many.
const mostFingerprints = 16

// fingerprints returns the hashes of the public keys of the CAs by which the credential trusts the
// API server; none if it uses the system's trust store.
func fingerprints(credential *rest.Config) []string {
	if credential == nil {
		return nil
	}
	data := credential.CAData
	if len(data) == 0 && credential.CAFile != "" {
		data, _ = os.ReadFile(credential.CAFile) // an unreadable file has failed the connection before
	}
	var prints []string
	for len(prints) < mostFingerprints {
		var block *pem.Block
		if block, data = pem.Decode(data); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			continue
		}
		sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
		prints = append(prints, hex.EncodeToString(sum[:]))
	}
	slices.Sort(prints)
	return slices.Compact(prints)
}

// podsOf lists the pods that the API server has for a node.
func podsOf(ctx context.Context, client kubernetes.Interface, nodeName string) ([]owner.KnownPod, error) {
	list, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName})
	if err != nil {
		return nil, fmt.Errorf("list the pods of the Node %q: %w", nodeName, err)
	}
	return owner.KnownPods(list.Items), nil
}

// Claim returns what the cluster contributes to the claim of its node's host.
func (c *Connection) Claim(nodeName string) owner.Config {
	o := owner.Config{ClusterUID: c.UID, NodeName: nodeName}
	if c.IsReady() {
		o.Witnesses = c.Witnesses
		o.Pods = func(ctx context.Context) ([]owner.KnownPod, error) { return podsOf(ctx, c.Client, nodeName) }
	}
	return o
}

// Seen is a cluster with which a host is compared.
type Seen struct {
	Client    kubernetes.Interface
	Witnesses owner.Witnesses
}

// Has reports whether a host belongs to the cluster. The host's node is known from its owner file
// or, without one, from the stamps of its sandboxes. The rule is the one by which a node starts.
func (c Seen) Has(ctx context.Context, file *owner.Record, id owner.Identity, sandboxes []owner.Sandbox) (bool, error) {
	if file == nil {
		file = &owner.Record{Identity: id}
	}
	if file.IsOf(c.Witnesses.Service, c.Witnesses, sandboxes, nil) {
		return true, nil
	}
	pods, err := podsOf(ctx, c.Client, id.NodeName)
	if err != nil {
		return false, err
	}
	return file.IsOf(c.Witnesses.Service, c.Witnesses, sandboxes, pods), nil
}
