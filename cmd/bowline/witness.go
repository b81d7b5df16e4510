package main

import (
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

// witnesses reads what tells this cluster from others: the Service default/kubernetes,
// the Node, if there is one, and the CA of the credential. A node may not read
// namespaces, and the ConfigMap kube-root-ca.crt only where one of its pods mounts it.
// The Node is nil where there is none. The Service may be missing where the Node is there:
// somebody deleted it, and kube-apiserver is about to make it again.
func witnesses(ctx context.Context, client kubernetes.Interface, credential *rest.Config, nodeName string) (owner.Witnesses, *v1.Node, error) {
	service, err := client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil {
		err = fmt.Errorf("read the Service default/kubernetes, which tells clusters apart: %w", err)
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

// mostFingerprints of one bundle are compared; more than a cluster ever has.
const mostFingerprints = 16

// fingerprints are of the CA certificates by which the credential trusts the API server;
// none where it trusts those of this machine's system.
func fingerprints(credential *rest.Config) []string {
	if credential == nil {
		return nil
	}
	data := credential.CAData
	if len(data) == 0 && credential.CAFile != "" {
		data, _ = os.ReadFile(credential.CAFile) // an unreadable one has failed the connection
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

// podsOf are the pods that the API server has for a node.
func podsOf(ctx context.Context, client kubernetes.Interface, nodeName string) ([]owner.KnownPod, error) {
	list, err := client.CoreV1().Pods("").List(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + nodeName})
	if err != nil {
		return nil, fmt.Errorf("list the pods of the Node %q: %w", nodeName, err)
	}
	return owner.KnownPods(list.Items), nil
}

// claim is what the cluster knows of a machine that is to be its node.
func (c *cluster) claim(nodeName string) owner.Config {
	o := owner.Config{ClusterUID: c.uid, NodeName: nodeName}
	if c.isMet() {
		o.Witnesses = c.witnesses
		o.Pods = func(ctx context.Context) ([]owner.KnownPod, error) { return podsOf(ctx, c.client, nodeName) }
	}
	return o
}

// seenCluster is a cluster that a machine is compared with.
type seenCluster struct {
	client    kubernetes.Interface
	witnesses owner.Witnesses
}

// has says whether a machine that is a node by its owner file or, without one, by the
// stamps of what runs, is one of the cluster. Where no witness agrees, a pod that the API
// server has and that runs on the machine is proof, as for a node that starts.
func (c seenCluster) has(ctx context.Context, file *owner.Record, id owner.Identity, sandboxes []owner.Sandbox) (bool, error) {
	if file == nil {
		file = &owner.Record{Identity: id}
	}
	like := file.Compare(c.witnesses.Service, c.witnesses)
	if like == owner.Same {
		return true, nil
	}
	pods, err := podsOf(ctx, c.client, id.NodeName)
	if err != nil {
		return false, err
	}
	return like.Proved(id, sandboxes, pods), nil
}
