package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/hostadmin"
	"github.com/bowline-k8s/bowline/hostcheck"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// check returns the check of a Host object's host, reached as Bowline reaches it.
func (a *access) check(ctx context.Context, namespace, name, rootDir string) (*hostcheck.Config, error) {
	objects, client, err := a.clients()
	if err != nil {
		return nil, err
	}
	h, err := objects.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the Host %s: %w", name, err)
	}
	if !strings.HasPrefix(h.Spec.Endpoint, "ssh://") {
		return nil, fmt.Errorf("the Host %s is on Bowline's own machine: bowline host check %s, there", name, h.Spec.Endpoint)
	}
	var given endpoint.Credentials
	if ref := h.Spec.CredentialsSecretRef; ref != nil {
		secret, err := client.CoreV1().Secrets(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read the key of the Host %s: %w", name, err)
		}
		given.Key, given.Passphrase, given.Certificate = secret.Data[v1.SSHAuthPrivateKey], bytes.TrimRight(secret.Data[connect.SecretPassphrase], "\r\n"), secret.Data[connect.SecretCertificate]
	}
	target, err := endpoint.Resolve(h.Spec.Endpoint, endpoint.Options{Credentials: given, HostKeys: h.Spec.HostKeys, Jumps: hostadmin.Way(h)})
	if err != nil {
		return nil, fmt.Errorf("the Host %s: %w", name, err)
	}
	cfg := &hostcheck.Config{Endpoint: h.Spec.Endpoint, Target: target, Socket: target.Socket, RootDir: rootDir}
	cfg.Expose = hostadmin.ExposedPort(h.Spec.KubeletExposure)
	if h.Status.NodeName != "" {
		w, _, err := cluster.Witnesses(ctx, client, nil, h.Status.NodeName)
		if err != nil {
			return nil, err
		}
		cfg.Managed, cfg.Witnesses = owner.Identity{ClusterUID: w.Service, NodeName: h.Status.NodeName}, w
	}
	return cfg, nil
}
