package nodecert

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
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
	"sync"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// cluster is an API server with a signer. It identifies clients by a token or a client certificate,
// and signs what is approved.
type cluster struct {
	*httptest.Server
	t   *testing.T
	ca  *x509.Certificate
	key *ecdsa.PrivateKey

	mu       sync.Mutex
	tokens   map[string]string // to user names; others are rejected
	forbid   string            // a verb that is forbidden to everyone
	auto     bool              // requests are approved at once
	requests []*certificatesv1.CertificateSigningRequest
	approved []string // by this user
	serial   int64
	seen     []string      // "user serial" of each GET /version
	release  chan struct{} // ends GET /hold
	holds    chan struct{} // one for each GET /hold that has begun
	errs     []string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, tokens: map[string]string{"first": "system:bootstrap:first"}, auto: true, serial: 100,
		release: make(chan struct{}), holds: make(chan struct{}, 10)}
	c.key = newKey(t)
	c.ca = c.certificate(&x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}, c.key.Public())
	pool := x509.NewCertPool()
	pool.AddCert(c.ca)
	c.Server = httptest.NewUnstartedServer(http.HandlerFunc(c.serve))
	c.Server.TLS = &tls.Config{ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: pool}
	c.EnableHTTP2 = true
	c.Config.ErrorLog = log.New(io.Discard, "", 0)
	c.StartTLS()
	t.Cleanup(c.Close)
	return c
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testutil.Must(t, err)
	return key
}

// certificate signs a template; it is self-signed while there is no CA yet.
func (c *cluster) certificate(template *x509.Certificate, public any) *x509.Certificate {
	parent := c.ca
	if parent == nil {
		parent = template
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public, c.key)
	testutil.Must(c.t, err)
	out, err := x509.ParseCertificate(der)
	testutil.Must(c.t, err)
	return out
}

// asker is a rest.Config with a token.
func (c *cluster) asker(token string) *rest.Config {
	return &rest.Config{Host: c.URL, BearerToken: token, ContentConfig: rest.ContentConfig{ContentType: "application/json"}, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: c.Certificate().Raw})}}
}

// keep stores a certificate for node n1 in the directory, as if it was made earlier.
func (c *cluster) keep(dir, purpose string, serial int64, from, to time.Time) {
	c.t.Helper()
	key := newKey(c.t)
	cert := c.certificate(&x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: from, NotAfter: to,
		Subject: pkix.Name{CommonName: UserName("n1"), Organization: []string{Group}}, DNSNames: []string{"n1"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}, key.Public())
	der, err := x509.MarshalECPrivateKey(key)
	testutil.Must(c.t, err)
	text := append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})...)
	file := filepath.Join(dir, "n1-"+purpose+"-before.pem")
	testutil.Must(c.t, os.WriteFile(file, text, 0o600))
	testutil.Must(c.t, os.Symlink(file, filepath.Join(dir, "n1-"+purpose+"-current.pem")))
}

// user is the client, and the serial number of its certificate.
func (c *cluster) user(r *http.Request) (name string, serial string) {
	if len(r.TLS.PeerCertificates) > 0 {
		cert := r.TLS.PeerCertificates[0]
		return cert.Subject.CommonName, cert.SerialNumber.String()
	}
	return c.tokens[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")], ""
}

func (c *cluster) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	status := func(code int, reason, message string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":%q,"message":%q}`, code, reason, message)
	}
	c.mu.Lock()
	user, serial := c.user(r)
	forbid := c.forbid
	c.mu.Unlock()
	const requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
	switch {
	case user == "":
		status(http.StatusUnauthorized, "Unauthorized", "Unauthorized")
	case r.URL.Path == "/version":
		c.mu.Lock()
		c.seen = append(c.seen, user+" "+serial)
		c.mu.Unlock()
		fmt.Fprint(w, `{"gitVersion":"v1.37.1"}`)
	case r.URL.Path == "/hold": // a long answer, like a watch
		w.(http.Flusher).Flush()
		c.holds <- struct{}{}
		select {
		case <-c.release:
			fmt.Fprint(w, "whole")
		case <-r.Context().Done():
		}
	case r.URL.Query().Get("sendInitialEvents") == "true":
		status(http.StatusUnprocessableEntity, "Invalid", "lists are read by list")
	case r.URL.Query().Get("watch") != "":
		c.watch(w, r)
	case strings.HasPrefix(r.URL.Path, requests):
		if verb := map[string]string{"POST": "create", "GET": "list", "PUT": "approve"}[r.Method]; verb == forbid {
			status(http.StatusForbidden, "Forbidden", fmt.Sprintf("User %q cannot %s certificatesigningrequests", user, verb))
			return
		}
		c.certificates(w, r, user, strings.TrimPrefix(r.URL.Path, requests))
	default:
		status(http.StatusNotFound, "NotFound", "there is no "+r.URL.Path)
	}
}

func (c *cluster) certificates(w http.ResponseWriter, r *http.Request, user, rest string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var in certificatesv1.CertificateSigningRequest
	if r.Body != nil {
		_ = json.NewDecoder(r.Body).Decode(&in)
	}
	out := any(&in)
	switch {
	case r.Method == http.MethodPost:
		in.TypeMeta = metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"}
		in.Name, in.UID = fmt.Sprintf("csr-%d", len(c.requests)), "u"
		in.Spec.Username = user
		if c.auto {
			c.sign(&in)
		}
		c.requests = append(c.requests, &in)
	case r.Method == http.MethodPut && strings.HasSuffix(rest, "/approval"):
		for _, have := range c.requests {
			if "/"+have.Name+"/approval" == rest {
				c.approved = append(c.approved, user)
				have.Status.Conditions = in.Status.Conditions
				c.sign(have)
				out = have
			}
		}
	default:
		list := &certificatesv1.CertificateSigningRequestList{TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequestList"}}
		list.ResourceVersion = "1"
		name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
		for _, have := range c.requests {
			if have.Name == name {
				list.Items = append(list.Items, *have)
			}
		}
		out = list
	}
	_ = json.NewEncoder(w).Encode(out)
}

// watch sends the named request once it is signed.
func (c *cluster) watch(w http.ResponseWriter, r *http.Request) {
	w.(http.Flusher).Flush()
	name := strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	told := false
	for {
		select {
		case <-r.Context().Done():
			return
		case <-tick.C:
		}
		c.mu.Lock()
		for _, have := range c.requests {
			if have.Name == name && len(have.Status.Certificate) > 0 && !told {
				told = true
				_ = json.NewEncoder(w).Encode(map[string]any{"type": "MODIFIED", "object": have})
				w.(http.Flusher).Flush()
			}
		}
		c.mu.Unlock()
	}
}

// sign issues the requested certificate for an hour. The caller holds c.mu.
func (c *cluster) sign(r *certificatesv1.CertificateSigningRequest) {
	block, _ := pem.Decode(r.Spec.Request)
	asked, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		c.errs = append(c.errs, err.Error())
		return
	}
	c.serial++
	usage := x509.ExtKeyUsageClientAuth
	if r.Spec.SignerName == certificatesv1.KubeletServingSignerName {
		usage = x509.ExtKeyUsageServerAuth
	}
	cert := c.certificate(&x509.Certificate{SerialNumber: big.NewInt(c.serial), Subject: asked.Subject, DNSNames: asked.DNSNames, IPAddresses: asked.IPAddresses,
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{usage}}, asked.PublicKey)
	r.Status.Certificate = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})
	r.Status.Conditions = append(r.Status.Conditions, certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: "True"})
}

// asked are the requests so far, as "user signer".
func (c *cluster) asked() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	for _, r := range c.requests {
		out = append(out, r.Spec.Username+" "+strings.TrimPrefix(r.Spec.SignerName, "kubernetes.io/"))
	}
	return append(out, c.errs...)
}

// run calls a Run until the test ends.
func run(t *testing.T, r func(context.Context) error) {
	stop := testutil.Go(context.Background(), r)
	t.Cleanup(func() { _ = stop() })
}
