package config

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Identity is how the node authenticates to the API server, as system:node:NAME in system:nodes.
type Identity struct {
	// Mode is one of the four below; Kubeconfig by default.
	Mode string `json:"mode,omitempty"`
	// BootstrapKubeconfig, with mode Bootstrap, is the file with the credential that may request a
	// node's first certificate.
	BootstrapKubeconfig string `json:"bootstrapKubeconfig,omitempty"`
	// CertificateDirectory stores the requested certificates with their keys, on the machine of
	// this process; /var/lib/bowline/pki by default.
	CertificateDirectory string `json:"certificateDirectory,omitempty"`
}

// Modes of Identity.
const (
	// IdentityKubeconfig: the credential in Kubeconfig is the node's own.
	IdentityKubeconfig = "Kubeconfig"
	// IdentityImpersonate: the account in Kubeconfig, or else the pod's service account,
	// impersonates the node.
	IdentityImpersonate = "Impersonate"
	// IdentityBootstrap: BootstrapKubeconfig requests a certificate, which renews itself.
	IdentityBootstrap = "Bootstrap"
	// IdentityCSR: the account in Kubeconfig, or else the pod's service account, requests
	// certificates and approves them itself.
	IdentityCSR = "CSR"
)

// Authentication of requests to the node.
type Authentication struct {
	X509      X509Authentication      `json:"x509,omitempty"`
	Webhook   WebhookAuthentication   `json:"webhook,omitempty"`
	Anonymous AnonymousAuthentication `json:"anonymous,omitempty"`
}

// X509Authentication accepts client certificates.
type X509Authentication struct {
	// ClientCAFile has the CA of client certificates; by default none, so that no certificate is
	// accepted.
	ClientCAFile string `json:"clientCAFile,omitempty"`
}

// WebhookAuthentication asks the API server by TokenReview.
type WebhookAuthentication struct {
	Enabled  *bool           `json:"enabled,omitempty"`  // true by default
	CacheTTL metav1.Duration `json:"cacheTTL,omitempty"` // 2m by default
}

// AnonymousAuthentication accepts requests without a credential.
type AnonymousAuthentication struct {
	Enabled *bool `json:"enabled,omitempty"` // false by default
}

// Authorization of requests to the node.
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

// WebhookAuthorization sets how long decisions are cached.
type WebhookAuthorization struct {
	CacheAuthorizedTTL   metav1.Duration `json:"cacheAuthorizedTTL,omitempty"`   // 5m by default
	CacheUnauthorizedTTL metav1.Duration `json:"cacheUnauthorizedTTL,omitempty"` // 30s by default
}
