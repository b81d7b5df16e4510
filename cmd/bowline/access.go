package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/kubeclient"
)

// access is how a command reaches the cluster: the kubeconfig and context, found as kubectl finds
// them.
type access struct{ kubeconfig, context string }

func (a *access) register(c *cobra.Command) {
	c.Flags().StringVar(&a.kubeconfig, "kubeconfig", "", "the kubeconfig to use (default: $KUBECONFIG, ~/.kube/config, or inside a pod its service account)")
	c.Flags().StringVar(&a.context, "context", "", "the kubeconfig context to use (default: the current one)")
}

func (a *access) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.context})
}

// namespace returns the namespace of the context, or the pod's own in a pod without a kubeconfig.
func (a *access) namespace() (string, error) {
	namespace, _, err := a.loader().Namespace()
	return namespace, accessError(err)
}

// accessError tells the user what to do if no cluster is configured.
func accessError(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("no cluster is configured: neither $KUBECONFIG nor ~/.kube/config exists; set --kubeconfig")
	}
	if err != nil {
		return fmt.Errorf("kubeconfig: %w", err)
	}
	return nil
}

func (a *access) rest() (*rest.Config, error) {
	config, err := a.loader().ClientConfig()
	if err != nil {
		return nil, accessError(err)
	}
	config.Timeout = 30 * time.Second
	return kubeclient.Configure(config), nil
}

// clients returns the client for Host objects and the one for everything else.
func (a *access) clients() (*hosts.Client, kubernetes.Interface, error) {
	config, err := a.rest()
	if err != nil {
		return nil, nil, err
	}
	objects, err := hosts.NewClient(config)
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	client, err := kubeclient.New(config)
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return objects, client, nil
}

// ownNamespace is the default namespace of the chart, and of the Secrets that "host add" creates.
const ownNamespace = "bowline"

func namespaceFlag(c *cobra.Command, namespace *string) {
	c.Flags().StringVarP(namespace, "namespace", "n", ownNamespace, "Bowline's namespace, which has the Secrets with the SSH keys; the namespace of the context is ignored")
}
