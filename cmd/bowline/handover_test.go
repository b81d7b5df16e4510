package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/spf13/cobra"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// refuses: each of the command lines ends with an error that has the words, and
// prints nothing.
func refuses(t *testing.T, command func() *cobra.Command, cases map[string][]string) {
	t.Helper()
	for want, args := range cases {
		c := command()
		c.SilenceUsage, c.SilenceErrors = true, true
		var out bytes.Buffer
		c.SetOut(&out)
		c.SetArgs(args)
		if err := c.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%q: %v, not %q; printed %q", args, err, want, out.String())
		}
	}
}

func TestHandOverRefuses(t *testing.T) {
	refuses(t, hostPrepareCommand, map[string][]string{
		"give ENDPOINT":           {},
		"unix:///path":            {"run/c.sock"},
		"--pod-cidr \"10.0.0.1\"": {"/run/c.sock", "--pod-cidr", "10.0.0.1"},
		"10.0.0.1/24":             {"/run/c.sock", "--pod-cidr", "10.0.0.1/24"},
		"that --node-name names":  {"/run/c.sock", "--kubeconfig", "x"},
		"no use with --pod-cidr":  {"/run/c.sock", "--kubeconfig", "x", "--node-name", "n", "--pod-cidr", "10.85.0.0/24"},
		"of use to ssh://":        {"/run/c.sock", "--jump", "x"},
		"--root-directory":        {"/run/c.sock", "--root-directory", "x"},
	})
	refuses(t, hostReleaseCommand, map[string][]string{
		"give ENDPOINT":    {},
		"unix:///path":     {"tcp://x"},
		"to be positive":   {"/run/c.sock", "--drain-timeout", "0s"},
		"--node-name: of":  {"/run/c.sock", "--node-name", "x"},
		"--root-directory": {"/run/c.sock", "--root-directory", "x/"},
	})
	key := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(key, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(key), "config.yaml"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	with := func(args ...string) []string {
		return append([]string{"--ssh", "root@10.0.0.7", "--identity-file", key, "--node-name", "n", "--out", t.TempDir()}, args...)
	}
	refuses(t, configureCommand, map[string][]string{
		"give --identity-file":    {},
		"--node-name":             with("--node-name", "No"),
		"--identity-file":         with("--identity-file", key+".not"),
		"--host-key":              with("--host-key", "x"),
		"--ssh \"root@\"":         with("--ssh", "root@"),
		"a configuration already": with("--out", filepath.Dir(key)),
	})
}

// signer is an API server that signs what is approved. The first approval meets a
// conflict: somebody else has written the request.
type signer struct {
	mu        sync.Mutex
	request   certificatesv1.CertificateSigningRequest
	conflicts int
	deny      bool
	certs     []byte
	unsigned  func() // told that an approved request is asked for which has no certificate
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

// asJSON is a cluster that is spoken to in words that signer understands.
func asJSON(url string) *rest.Config {
	return &rest.Config{Host: url, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

func TestIssueNode(t *testing.T) {
	tls := httptest.NewTLSServer(nil) // for any certificate at all
	defer tls.Close()
	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: tls.Certificate().Raw})
	s := &signer{conflicts: 1, certs: certificate}
	server := httptest.NewServer(s)
	defer server.Close()
	issued, err := issueNode(t.Context(), asJSON(server.URL), "box-1")
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(s.request.Spec.Request)
	request, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || request.Subject.String() != "CN=system:node:box-1,O=system:nodes" || s.request.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		t.Errorf("asked for %v by %s, %v", request.Subject, s.request.Spec.SignerName, err)
	}
	config, err := clientcmd.Load(issued.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if user := config.AuthInfos["system:node:box-1"]; user == nil || !bytes.Equal(user.ClientCertificateData, certificate) || len(user.ClientKeyData) == 0 {
		t.Errorf("the kubeconfig is %s", issued.kubeconfig)
	}
	if cluster := config.Clusters["cluster"]; cluster == nil || cluster.Server != server.URL {
		t.Errorf("the kubeconfig is %s", issued.kubeconfig)
	}
	if string(issued.clientCA) != "CA\n" || issued.dns != "10.96.0.10" || !issued.until.Equal(tls.Certificate().NotAfter) {
		t.Errorf("issued %q, %q, %v", issued.clientCA, issued.dns, issued.until)
	}
}

func TestIssueNodeFails(t *testing.T) {
	s := &signer{deny: true}
	server := httptest.NewServer(s)
	defer server.Close()
	if _, err := issueNode(t.Context(), asJSON(server.URL), "box-1"); err == nil || !strings.Contains(err.Error(), "Denied: not you") {
		t.Errorf("denied: %v", err)
	}
	s.deny = false // and nobody signs
	// Patience ends while the approved request is looked at for the second time.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	looks := 0
	s.unsigned = func() {
		if looks++; looks == 2 {
			cancel()
		}
	}
	if _, err := issueNode(ctx, asJSON(server.URL), "box-1"); err == nil || !strings.Contains(err.Error(), "nobody signs it") {
		t.Errorf("not signed: %v", err)
	}
}

// TestSubnetOf: the IPv4 network that the cluster gave the Node, if it gave one.
func TestSubnetOf(t *testing.T) {
	for cidrs, want := range map[string]string{"10.42.3.0/24": "10.42.3.0/24", "fd00::/64,10.42.3.0/24": "10.42.3.0/24", "": ""} {
		n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "pi-1"}}
		if cidrs != "" {
			n.Spec.PodCIDRs = strings.Split(cidrs, ",")
			n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
		}
		got, err := subnetOf(t.Context(), fake.NewClientset(n), "pi-1")
		if err != nil || got.IsValid() != (want != "") || got.IsValid() && got.String() != want {
			t.Errorf("%q: %s, %v", cidrs, got, err)
		}
	}
	if got, err := subnetOf(t.Context(), fake.NewClientset(), "pi-1"); err != nil || got.IsValid() {
		t.Errorf("no Node yet: %s, %v", got, err)
	}
}
