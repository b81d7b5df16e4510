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

func (a *access) rest() (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = a.kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: a.context}).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		return nil, errors.New("no cluster is named: there is neither $KUBECONFIG nor ~/.kube/config; say which one with --kubeconfig")
	}
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
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
	c.Flags().StringVarP(namespace, "namespace", "n", ownNamespace, "Bowline's own namespace, where the Secrets with the keys are")
}
