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
)

// access is a person's way to a cluster, as kubectl finds it.
type access struct{ kubeconfig, context string }

func (a *access) register(c *cobra.Command) {
	c.Flags().StringVar(&a.kubeconfig, "kubeconfig", "", "the kubeconfig to use (default: $KUBECONFIG, ~/.kube/config, or in a pod its own account)")
	c.Flags().StringVar(&a.context, "context", "", "the context of it to use (default: its current one)")
}

func (a *access) loader() clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.context})
}

// namespace is that of the context; in a pod without a kubeconfig, the pod's.
func (a *access) namespace() (string, error) {
	namespace, _, err := a.loader().Namespace()
	return namespace, accessError(err)
}

// accessError says what to do where no cluster is named.
func accessError(err error) error {
	if clientcmd.IsEmptyConfig(err) {
		return errors.New("no cluster is named: there is neither $KUBECONFIG nor ~/.kube/config; say which one with --kubeconfig")
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
	return ours(config), nil
}

// clients of Host objects and of everything else.
func (a *access) clients() (*hosts.Client, kubernetes.Interface, error) {
	config, err := a.rest()
	if err != nil {
		return nil, nil, err
	}
	objects, err := hosts.NewClient(config)
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	client, err := newClientset(config)
	if err != nil {
		return nil, nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return objects, client, nil
}

// ownNamespace is where the chart puts Bowline, and "host add" the keys.
const ownNamespace = "bowline"

func namespaceFlag(c *cobra.Command, namespace *string) {
	c.Flags().StringVarP(namespace, "namespace", "n", ownNamespace, "the namespace that Bowline is installed in, where the Secrets with the SSH keys are; that of the context is not used")
}
