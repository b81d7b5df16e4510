package node

import (
	"context"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/features"
	"github.com/bowline-k8s/bowline/syncloop/images"
	"github.com/bowline-k8s/bowline/syncloop/images/credentialprovider"
)

// credentialPrograms loads the host's image credential providers; nil if none are configured.
func credentialPrograms(cfg *config.Host, gates features.Gates) ([]credentialprovider.Program, error) {
	if cfg.ImageCredentialProviderConfig == "" {
		return nil, nil
	}
	return credentialprovider.Load(cfg.ImageCredentialProviderConfig, cfg.ImageCredentialProviderBinDir, gates.Enabled(features.KubeletServiceAccountTokenForCredentialProviders))
}

// credentialProviders returns what the image manager asks for credentials; nil if there are none.
func (n *Node) credentialProviders() (images.Providers, error) {
	if len(n.programs) == 0 {
		return nil, nil
	}
	return credentialprovider.New(n.programs, serviceAccounts{n.cluster.Client.CoreV1()}, n.parts.tokens, n.metrics.parts.PluginRan)
}

// serviceAccounts reads the service accounts of pods with the node's credential: the Node
// authorizer lets a node read those of its own pods.
type serviceAccounts struct{ core corev1client.CoreV1Interface }

func (s serviceAccounts) ServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	ctx, cancel := context.WithTimeout(ctx, claimTimeout)
	defer cancel()
	return s.core.ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}
