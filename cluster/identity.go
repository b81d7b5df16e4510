package cluster

import (
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/certificate"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/kubeclient"
	"github.com/bowline-k8s/bowline/nodecert"
)

// identity is how one node authenticates to the API server.
type identity struct {
	mode config.Identity
	node *rest.Config // authenticates as the node
	// server says how the API server is reached and trusted. node does not say it in the modes that
	// use a certificate from nodecert.
	server *rest.Config
	// approver is the process's account, if it approves the node's certificate signing requests;
	// nil if others do.
	Approver *rest.Config
	stop     func() // stops the renewal of the certificate
	// current returns the client certificate; nil if none is managed here.
	current func() *tls.Certificate
}

// newIdentity creates the node's credential in the configured mode. It waits for a certificate that
// must be signed first.
func newIdentity(ctx context.Context, cfg *config.Host, nodeName string, renewFailed certificate.Counter) (*identity, error) {
	i := &identity{mode: cfg.Identity, stop: func() {}}
	base, err := processAccount(cfg)
	if err != nil {
		return nil, err
	}
	i.server = base
	switch cfg.Identity.Mode {
	case config.IdentityImpersonate:
		i.node = rest.CopyConfig(base)
		i.node.Impersonate = rest.ImpersonationConfig{UserName: nodecert.UserName(nodeName), Groups: []string{nodecert.Group}}
	case config.IdentityBootstrap:
		err = i.certify(ctx, nodecert.Config{NodeName: nodeName, Directory: cfg.Identity.CertificateDirectory, Asker: base, RenewFailed: renewFailed})
	case config.IdentityCSR:
		klog.FromContext(ctx).Error(nil, "Using identity mode CSR, which lets this account become any node",
			"credential", credentialOf(cfg), "node", nodeName)
		i.Approver = base
		err = i.certify(ctx, nodecert.Config{NodeName: nodeName, Directory: cfg.Identity.CertificateDirectory, Asker: base, Approve: true, RenewFailed: renewFailed})
	default:
		i.node = base
	}
	if err != nil {
		return nil, err
	}
	return i, nil
}

// certify gets a client certificate for the node and renews it from now on.
func (i *identity) certify(ctx context.Context, c nodecert.Config) error {
	client, err := nodecert.NewClient(ctx, c)
	if err != nil {
		return err
	}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = client.Run(running) }() // its only failure is a missing certificate, which Wait reports
	i.stop = func() { cancel(); <-ended }
	i.node, i.current = client.REST(), client.Current
	if err := client.Wait(ctx); err != nil {
		i.stop()
		return fmt.Errorf("a certificate for node %q: %w; %s", c.NodeName, err, certifyRights(i.mode.Mode))
	}
	return nil
}

// Certificate returns the client certificate that Bowline renews, or nil if the credential comes from
// elsewhere.
func (i *identity) Certificate() *tls.Certificate {
	if i.current == nil {
		return nil
	}
	return i.current()
}

// close stops the renewal of the certificate. It may be called twice.
func (i *identity) close() { i.stop() }

// processAccount returns the credential in the configuration: the node's own, or the one with which
// the node's is obtained.
func processAccount(cfg *config.Host) (*rest.Config, error) {
	var base *rest.Config
	var err error
	switch file := credentialFile(cfg); file {
	case "":
		if base, err = rest.InClusterConfig(); err != nil {
			err = hint.Add(err, "set kubeconfig, which names the account outside of a pod")
		}
	default:
		base, err = clientcmd.BuildConfigFromFlags("", file)
	}
	if err != nil {
		return nil, err
	}
	if err := checkCertificate(base, time.Now()); err != nil {
		return nil, err
	}
	return kubeclient.Configure(base), nil
}

// credentialFile is the kubeconfig of processAccount; empty means the pod's service account.
func credentialFile(cfg *config.Host) string {
	if cfg.Identity.Mode == config.IdentityBootstrap {
		return cfg.Identity.BootstrapKubeconfig
	}
	return cfg.Kubeconfig
}

// credentialOf names the credential for a message.
func credentialOf(cfg *config.Host) string {
	if file := credentialFile(cfg); file != "" {
		return "kubeconfig " + file
	}
	return "the pod's service account"
}

// unaccepted is the error for a credential that the API server does not accept.
func (i *identity) unaccepted(err error, server, nodeName string) error {
	fix := "issue a new one for " + nodecert.UserName(nodeName)
	switch i.mode.Mode {
	case config.IdentityImpersonate:
		fix = "issue a new credential for the account that impersonates " + nodecert.UserName(nodeName)
	case config.IdentityBootstrap, config.IdentityCSR:
		fix = "remove " + filepath.Join(i.mode.CertificateDirectory, nodeName+"-client-current.pem") + ", and a new one is requested"
	}
	return hint.Add(fmt.Errorf("the API server at %s does not accept this credential: %w", server, err), "%s", fix)
}

// forbidden is the error for an account that may not act as the node.
func (i *identity) forbidden(err error, nodeName string) error {
	if i.mode.Mode != config.IdentityImpersonate {
		return fmt.Errorf("the API server refuses its first answer: %w", err)
	}
	return hint.Add(fmt.Errorf("this account may not impersonate the node: %w", err), "give it a ClusterRole with the rules %s", impersonateRules(nodeName))
}

// impersonateRules returns all RBAC rules that mode Impersonate needs, as one line of YAML.
func impersonateRules(nodeName string) string {
	return fmt.Sprintf("[{apiGroups: [\"\"], resources: [users], verbs: [impersonate], resourceNames: [%q]}, "+
		"{apiGroups: [\"\"], resources: [groups], verbs: [impersonate], resourceNames: [%q]}]", nodecert.UserName(nodeName), nodecert.Group)
}

// certifyRights returns what an account needs to request certificates.
func certifyRights(mode string) string {
	if mode == config.IdentityCSR {
		return `the account that requests and approves needs a ClusterRole with the rules [{apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests], verbs: [create, get, list, watch]}, ` +
			`{apiGroups: [certificates.k8s.io], resources: [certificatesigningrequests/approval], verbs: [update]}, ` +
			`{apiGroups: [certificates.k8s.io], resources: [signers], verbs: [approve], resourceNames: ["kubernetes.io/kube-apiserver-client-kubelet"]}]`
	}
	return "the account that requests needs the ClusterRole system:node-bootstrapper and a token that has not expired"
}
