// Package clustertest has fake API servers and kubeconfigs for tests of a node's connection.
package clustertest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// APIServer is a fake API server. If code is set, it refuses every request with it.
func APIServer(t *testing.T, user string, code int, version string) *httptest.Server {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if code != 0 {
			w.WriteHeader(code)
			fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q}`, code, strings.ReplaceAll(http.StatusText(code), " ", ""))
			return
		}
		switch {
		case r.URL.Path == "/version":
			fmt.Fprint(w, version)
		case strings.HasSuffix(r.URL.Path, "/selfsubjectreviews"):
			fmt.Fprintf(w, `{"kind":"SelfSubjectReview","apiVersion":"authentication.k8s.io/v1","status":{"userInfo":{"username":%q}}}`, user)
		case r.URL.Path == "/api/v1/namespaces/default/services/kubernetes":
			fmt.Fprint(w, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"kubernetes","uid":"u1"}}`)
		case r.URL.Path == "/api/v1/nodes/n1":
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":404,"reason":"NotFound"}`)
		default:
			t.Errorf("asked for %s", r.URL.Path)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // some cases use a client that does not trust it
	t.Cleanup(s.Close)
	return s
}

// Kubeconfig writes a kubeconfig for the server.
func Kubeconfig(t *testing.T, server string, ca *x509.Certificate, clientCert, clientKey []byte) string {
	t.Helper()
	cluster, user := map[string]any{"server": server}, map[string]any{"token": "t"}
	if ca != nil {
		cluster["certificate-authority-data"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.Raw})
	}
	if clientCert != nil {
		user = map[string]any{"client-certificate-data": clientCert, "client-key-data": clientKey}
	}
	data, err := json.Marshal(map[string]any{
		"apiVersion": "v1", "kind": "Config", "current-context": "x",
		"clusters": []any{map[string]any{"name": "x", "cluster": cluster}},
		"users":    []any{map[string]any{"name": "x", "user": user}},
		"contexts": []any{map[string]any{"name": "x", "context": map[string]any{"cluster": "x", "user": "x"}}},
	})
	testutil.Must(t, err)
	file := filepath.Join(t.TempDir(), "kubeconfig")
	testutil.Must(t, os.WriteFile(file, data, 0o600))
	return file
}

// ClientCertificate returns a certificate of system:node:n1 that is valid between the two times.
func ClientCertificate(t *testing.T, from, to time.Time) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testutil.Must(t, err)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "system:node:n1"}, NotBefore: from, NotAfter: to}
	der, err := x509.CreateCertificate(rand.Reader, template, template, k.Public(), k)
	testutil.Must(t, err)
	keyDER, err := x509.MarshalECPrivateKey(k)
	testutil.Must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// HostWith returns a host whose kubeconfig is file.
func HostWith(file string) *config.Host {
	limit := int32(100)
	return &config.Host{Kubeconfig: file, NodeSettings: config.NodeSettings{
		Identity: config.Identity{Mode: config.IdentityKubeconfig}, KubeAPIQPS: &limit, KubeAPIBurst: &limit}}
}

const GoodVersion = `{"major":"1","minor":"37","gitVersion":"v1.37.1"}`
