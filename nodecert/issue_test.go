package nodecert

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// signer is an API server that signs approved requests. The first approval conflicts with another
// writer's update.
type signer struct {
	mu        sync.Mutex
	request   certificatesv1.CertificateSigningRequest
	conflicts int
	deny      bool
	certs     []byte
	unsigned  func() // called when an approved request without a certificate is read
}

func (s *signer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	answer := func(code int, object any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(object)
	}
	body, _ := io.ReadAll(r.Body)
	const path = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	switch {
	case r.Method == http.MethodPost && r.URL.Path == path:
		s.request = certificatesv1.CertificateSigningRequest{}
		_ = json.Unmarshal(body, &s.request)
		s.request.Name = s.request.GenerateName + "x"
		if s.deny {
			s.request.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateDenied, Message: "not you"}}
		}
		answer(http.StatusCreated, s.request)
	case r.Method == http.MethodPut && s.conflicts > 0:
		s.conflicts--
		answer(http.StatusConflict, metav1.Status{Status: "Failure", Reason: metav1.StatusReasonConflict, Code: http.StatusConflict})
	case r.Method == http.MethodPut:
		_ = json.Unmarshal(body, &s.request)
		s.request.Status.Certificate = s.certs
		answer(http.StatusOK, s.request)
	case strings.HasPrefix(r.URL.Path, path):
		if c := s.request.Status.Conditions; s.unsigned != nil && len(c) > 0 && len(s.request.Status.Certificate) == 0 {
			s.unsigned()
		}
		answer(http.StatusOK, s.request)
	case strings.HasSuffix(r.URL.Path, "/configmaps/extension-apiserver-authentication"):
		answer(http.StatusOK, v1.ConfigMap{Data: map[string]string{"client-ca-file": "CA\n"}})
	case strings.HasSuffix(r.URL.Path, "/services"):
		answer(http.StatusOK, v1.ServiceList{Items: []v1.Service{
			{Spec: v1.ServiceSpec{ClusterIP: v1.ClusterIPNone}}, {Spec: v1.ServiceSpec{ClusterIP: "10.96.0.10"}}}})
	default:
		answer(http.StatusNotFound, metav1.Status{Status: "Failure", Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound})
	}
}

// asJSON returns a client configuration in JSON, which signer understands.
func asJSON(url string) *rest.Config {
	return &rest.Config{Host: url, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

func TestIssueNode(t *testing.T) {
	tls := httptest.NewTLSServer(nil) // for any valid certificate
	defer tls.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})
	s := &signer{conflicts: 1, certs: certificate}
	server := httptest.NewServer(s)
	defer server.Close()
	issued, err := Issue(t.Context(), asJSON(server.URL), "box-1")
	testutil.Must(t, err)
	block, _ := pem.Decode(s.request.Spec.Request)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || request.Subject.String() != "CN=system:node:box-1,O=system:nodes" || s.request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		t.Errorf("asked for %v by %s, %v", request.Subject, s.request.Spec.SignerName, err)
	}
	config, err := clientcmd.Load(issued.Kubeconfig)
	testutil.Must(t, err)
	if user := config.AuthInfos["system:node:box-1"]; user == nil || !bytes.Equal(user.ClientCertificateData, certificate) || len(user.ClientKeyData) == 0 {
		t.Errorf("the kubeconfig is %s", issued.Kubeconfig)
	}
	if cluster := config.Clusters["cluster"]; cluster == nil || cluster.Server != server.URL {
		t.Errorf("the kubeconfig is %s", issued.Kubeconfig)
	}
	if string(issued.ClientCA) != "CA\n" || issued.DNS != "10.96.0.10" || !issued.Until.Equal(tls.Certificate().NotAfter) {
		t.Errorf("issued %q, %q, %v", issued.ClientCA, issued.DNS, issued.Until)
	}
}

func TestIssueNodeFails(t *testing.T) {
	s := &signer{deny: true}
	server := httptest.NewServer(s)
	defer server.Close()
	if _, err := Issue(t.Context(), asJSON(server.URL), "box-1"); err == nil || !strings.Contains(err.Error(), "Denied: not you") {
		t.Errorf("denied: %v", err)
	}
	s.deny = false // and no one signs
	// The context ends at the second read of the approved request.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks := 0
	s.unsigned = func() {
		if looks++; looks == 2 {
			cancel()
		}
	}
	if _, err := Issue(ctx, asJSON(server.URL), "box-1"); err == nil || !strings.Contains(err.Error(), "not signed") {
		t.Errorf("not signed: %v", err)
	}
}
