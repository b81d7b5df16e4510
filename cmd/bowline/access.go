package main

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/hosts"
	"github.com/bowline-k8s/bowline/kubeclient"
)

// access is how a command reaches the cluster: the kubeconfig and context, found as kubectl finds
// them.
type access struct{ kubeconfig, context string }

func (a *access) flags() *genericclioptions.ConfigFlags {
	return &genericclioptions.ConfigFlags{KubeConfig: &a.kubeconfig, Context: &a.context}
}

func (a *access) register(c *cobra.Command) {
	a.flags().AddFlags(c.Flags())
	c.Flags().Lookup("kubeconfig").Usage = "the kubeconfig to use (default: $KUBECONFIG, ~/.kube/config, or inside a pod its service account)"
	c.Flags().Lookup("context").Usage = "the kubeconfig context to use (default: the current one)"
}

// namespace returns the namespace of the context, or the pod's own in a pod without a kubeconfig.
func (a *access) namespace() (string, error) {
	namespace, _, err := a.flags().ToRawKubeConfigLoader().Namespace()
	if err != nil {
		return "", fmt.Errorf("kubeconfig: %w", err)
	}
	return namespace, nil
}

// rest tells the user what to do if no cluster is configured.
func (a *access) rest() (*rest.Config, error) {
	loader := a.flags().ToRawKubeConfigLoader()
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	// kubectl would try its default server, on port 8080 of this machine.
	if raw, err := loader.RawConfig(); err == nil && api.IsConfigEmpty(&raw) && config.Host == clientcmd.ClusterDefaults.Server {
		return nil, hint.Add(errors.New("no cluster is configured: neither $KUBECONFIG nor ~/.kube/config exists"), "set --kubeconfig")
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
	c.Flags().StringVarP(namespace, "namespace", "n", ownNamespace, "Bowline's namespace, with the Secrets of the SSH keys; the context's namespace is ignored")
}
