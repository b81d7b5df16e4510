package hostadmin

import (
	"bytes"
	"context"
	"fmt"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/bowline-k8s/bowline/cluster"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/hostcheck"
	"github.com/bowline-k8s/bowline/sshlogin"
	"github.com/bowline-k8s/bowline/syncloop/owner"
)

// Reach is how a command reaches a machine that no Host object describes.
type Reach struct {
	// SSH is what the user said of the way to a remote machine. Check completes it.
	SSH endpoint.Options
	// Certificate is the file of an OpenSSH user certificate for the key, or empty.
	Certificate string
	// Given are the flags of the command line that have no effect on a local socket.
	Given []string
	// Own finds the user's own login.
	Own func(context.Context) sshlogin.Login
}

// Check returns the check of the machine at endpoint raw. A login that the user did not name is the
// user's own, unless an ssh_config sets it.
func (r *Reach) Check(ctx context.Context, raw, rootDir string) (*hostcheck.Config, error) {
	var own sshlogin.Login
	if strings.HasPrefix(raw, "ssh://") && r.SSH.ConfigFile == "" {
		own = r.Own(ctx)
		r.complete(own)
	}
	cfg, err := r.target(raw)
	if err != nil {
		return nil, err
	}
	if cfg.Target != nil && r.SSH.Credentials.KeyFile == "" && !slices.Contains(r.Given, "--agent-socket") {
		cfg.Target.IdentityFiles = append(cfg.Target.IdentityFiles, own.Keys...)
		for i := range cfg.Target.Jumps {
			cfg.Target.Jumps[i].IdentityFiles = append(cfg.Target.Jumps[i].IdentityFiles, own.Keys...)
		}
	}
	cfg.RootDir = rootDir
	return cfg, nil
}

// complete fills what no flag sets from the user's own login. It sets the agent also with an
// identity file: the agent may have its passphrase.
func (r *Reach) complete(own sshlogin.Login) {
	if r.SSH.Credentials.AgentSocket == "" {
		r.SSH.Credentials.AgentSocket = own.Agent
	}
	if len(r.SSH.KnownHosts) == 0 && (len(r.SSH.HostKeys) == 0 || r.SSH.ProxyJump != "" && len(r.SSH.JumpHostKeys) == 0) {
		r.SSH.KnownHosts = own.KnownHosts
	}
}

// target returns the check of the machine that an endpoint names, without its root directory.
func (r *Reach) target(raw string) (*hostcheck.Config, error) {
	cfg := &hostcheck.Config{Endpoint: raw}
	if !strings.HasPrefix(raw, "ssh://") {
		cfg.Socket = strings.TrimPrefix(raw, "unix://")
		if !path.IsAbs(cfg.Socket) || path.Clean(cfg.Socket) != cfg.Socket {
			return nil, hint.Add(fmt.Errorf("endpoint %q is neither the absolute path of a socket nor ssh://", raw), "write unix:///path/of/the.sock, or ssh://user@host/path/of/the.sock")
		}
		cfg.Endpoint = "unix://" + cfg.Socket
		if len(r.Given) > 0 {
			return nil, fmt.Errorf("%s: only for ssh:// endpoints", strings.Join(r.Given, ", "))
		}
		return cfg, nil
	}
	for _, line := range r.SSH.HostKeys {
		if err := endpoint.CheckHostKey(line); err != nil {
			return nil, fmt.Errorf("--host-key: %w", err)
		}
	}
	target, err := endpoint.Resolve(raw, r.SSH)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	if r.Certificate != "" {
		target.CertificateFiles = append(target.CertificateFiles, r.Certificate)
	}
	cfg.Target, cfg.Socket = target, target.Socket
	return cfg, nil
}

// CheckOf returns the check of the machine of the Host called name, reached as Bowline reaches it:
// with the object's host keys, and the key of its Secret in namespace.
func CheckOf(ctx context.Context, objects Hosts, client kubernetes.Interface, namespace, name, rootDir string) (*hostcheck.Config, error) {
	h, err := objects.Get(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("read the Host %s: %w", name, err)
	}
	if !strings.HasPrefix(h.Spec.Endpoint, "ssh://") {
		return nil, hint.Add(fmt.Errorf("the Host %s is on Bowline's own machine", name), "run there: bowline host check %s", h.Spec.Endpoint)
	}
	var given endpoint.Credentials
	if ref := h.Spec.CredentialsSecretRef; ref != nil {
		secret, err := client.CoreV1().Secrets(namespace).Get(ctx, ref.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read the key of the Host %s: %w", name, err)
		}
		given.Key, given.Passphrase, given.Certificate = secret.Data[v1.SSHAuthPrivateKey], bytes.TrimRight(secret.Data[connect.SecretPassphrase], "\r\n"), secret.Data[connect.SecretCertificate]
	}
	target, err := endpoint.Resolve(h.Spec.Endpoint, endpoint.Options{Credentials: given, HostKeys: h.Spec.HostKeys, Jumps: Way(h)})
	if err != nil {
		return nil, fmt.Errorf("the Host %s: %w", name, err)
	}
	cfg := &hostcheck.Config{Endpoint: h.Spec.Endpoint, Target: target, Socket: target.Socket, RootDir: rootDir, Expose: ExposedPort(h.Spec.KubeletExposure)}
	if h.Status.NodeName != "" {
		w, _, err := cluster.Witnesses(ctx, client, nil, h.Status.NodeName)
		if err != nil {
			return nil, err
		}
		cfg.Managed, cfg.Witnesses = owner.Identity{ClusterUID: w.Service, NodeName: h.Status.NodeName}, w
	}
	return cfg, nil
}
