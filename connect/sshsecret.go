package connect

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/kubeclient"
)

const (
	// Keys of a login Secret, in addition to v1.SSHAuthPrivateKey.
	SecretPassphrase  = "passphrase"
	SecretCertificate = "ssh-publickey-cert"
	// secretAnswer bounds the read of the Secret: a login waits for it.
	secretAnswer = 5 * time.Second
)

// secretLogin is an SSH login that is read from a Secret.
type secretLogin struct {
	name       string // namespace/name
	kubeconfig string
	get        func(ctx context.Context) (*v1.Secret, error)

	mu   sync.Mutex
	last *endpoint.Login // the last one read
}

// sshSecret returns the login from the Secret that the configuration names.
func sshSecret(cfg *config.Host) (*secretLogin, error) {
	kubeconfig, namespace, name := cfg.SSH.Secret.Kubeconfig, cfg.SSH.Secret.Namespace, cfg.SSH.Secret.Name
	rest, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("ssh.secret: kubeconfig %s: %w", kubeconfig, err)
	}
	client, err := kubeclient.New(kubeclient.Configure(rest))
	if err != nil {
		return nil, fmt.Errorf("ssh.secret: kubeconfig %s: %w", kubeconfig, err)
	}
	return &secretLogin{name: namespace + "/" + name, kubeconfig: kubeconfig, get: func(ctx context.Context) (*v1.Secret, error) {
		return client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	}}, nil
}

// login reads the Secret. It returns the last login while the API server is away, and an error if
// the Secret was deleted or may not be read any more.
func (s *secretLogin) login(ctx context.Context) (endpoint.Login, error) {
	ctx, cancel := context.WithTimeout(ctx, secretAnswer)
	defer cancel()
	secret, err := s.get(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
	case apierrors.IsNotFound(err):
		s.last = nil
		return endpoint.Login{}, endpoint.NewAuthError(fmt.Sprintf("the Secret %s with the SSH key does not exist", s.name),
			"create it:\nkubectl create secret generic --type=kubernetes.io/ssh-auth --from-file=ssh-privatekey=FILE")
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		s.last = nil
		return endpoint.Login{}, endpoint.NewAuthError(fmt.Sprintf("the account of %s may not read the Secret %s with the SSH key: %v", s.kubeconfig, s.name, err),
			"give it a Role with resourceNames, or set ssh.secret.kubeconfig to that of another account")
	case s.last != nil:
		return *s.last, nil
	default:
		return endpoint.Login{}, fmt.Errorf("read the Secret %s with the SSH key: %w", s.name, err)
	}
	login := endpoint.Login{Key: secret.Data[v1.SSHAuthPrivateKey], Passphrase: bytes.TrimRight(secret.Data[SecretPassphrase], "\r\n"),
		Certificate: secret.Data[SecretCertificate]}
	if len(login.Key) == 0 {
		return endpoint.Login{}, endpoint.NewAuthError(fmt.Sprintf("the Secret %s has no %s", s.name, v1.SSHAuthPrivateKey), "give it the type "+string(v1.SecretTypeSSHAuth))
	}
	s.last = &login
	return login, nil
}

// credentials returns the login credentials of a remote host.
func credentials(cfg *config.Host) (endpoint.Credentials, error) {
	if cfg.SSH.Secret == nil {
		return endpoint.Credentials{
			KeyFile: cfg.SSH.IdentityFile, PassphraseFile: cfg.SSH.PassphraseFile, AgentSocket: cfg.SSH.AgentSocket,
		}, nil
	}
	secret, err := sshSecret(cfg)
	if err != nil {
		return endpoint.Credentials{}, err
	}
	return endpoint.Credentials{Source: secret.login}, nil
}
