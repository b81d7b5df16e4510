package config

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Identity of the node to the API server: system:node:NAME in system:nodes.
type Identity struct {
	// Mode is one of the four below; Kubeconfig by default.
	Mode string `json:"mode,omitempty"`
	// BootstrapKubeconfig, with mode Bootstrap, is the file with the credential that
	// may ask for a node's first certificate.
	BootstrapKubeconfig string `json:"bootstrapKubeconfig,omitempty"`
	// CertificateDirectory keeps certificates that were asked for, with their keys;
	// /var/lib/bowline/pki by default. It is on the machine of this process.
	CertificateDirectory string `json:"certificateDirectory,omitempty"`
}

// Modes of Identity.
const (
	// IdentityKubeconfig: the credential in Kubeconfig is the node's own.
	IdentityKubeconfig = "Kubeconfig"
	// IdentityImpersonate: the account in Kubeconfig, or the pod's service account
	// where there is none, impersonates the node.
	IdentityImpersonate = "Impersonate"
	// IdentityBootstrap: BootstrapKubeconfig asks for a certificate, which renews itself.
	IdentityBootstrap = "Bootstrap"
	// IdentityCSR: the account in Kubeconfig, or the pod's service account where there
	// is none, asks for certificates and approves them itself.
	IdentityCSR = "CSR"
)

// Authentication of who calls the node.
type Authentication struct {
	X509      X509Authentication      `json:"x509,omitempty"`
	Webhook   WebhookAuthentication   `json:"webhook,omitempty"`
	Anonymous AnonymousAuthentication `json:"anonymous,omitempty"`
}

// X509Authentication takes client certificates.
type X509Authentication struct {
	// ClientCAFile is the authority of clients; none by default, which takes no certificate.
	ClientCAFile string `json:"clientCAFile,omitempty"`
}

// WebhookAuthentication asks the API server by TokenReview.
type WebhookAuthentication struct {
	Enabled  *bool           `json:"enabled,omitempty"`  // true by default
	CacheTTL metav1.Duration `json:"cacheTTL,omitempty"` // 2m by default
}

// AnonymousAuthentication takes requests without a credential.
type AnonymousAuthentication struct {
	Enabled *bool `json:"enabled,omitempty"` // false by default
}

// Authorization of what a caller may do.
type Authorization struct {
	// Mode is Webhook (SubjectAccessReview), the default, or AlwaysAllow.
	Mode    string               `json:"mode,omitempty"`
	Webhook WebhookAuthorization `json:"webhook,omitempty"`
}

// Modes of Authorization.
const (
	AuthorizationWebhook     = "Webhook"
	AuthorizationAlwaysAllow = "AlwaysAllow"
)

// WebhookAuthorization caches answers.
type WebhookAuthorization struct {
	CacheAuthorizedTTL   metav1.Duration `json:"cacheAuthorizedTTL,omitempty"`   // 5m by default
	CacheUnauthorizedTTL metav1.Duration `json:"cacheUnauthorizedTTL,omitempty"` // 30s by default
}
