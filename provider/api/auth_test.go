package api

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T, name string) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testutil.Must(t, err)
	tpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, key.Public(), key)
	testutil.Must(t, err)
	cert, err := x509.ParseCertificate(der)
	testutil.Must(t, err)
	return authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (a authority) client(t *testing.T, name string, groups ...string) *x509.Certificate {
	t.Helper()
	tpl := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name, Organization: groups},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tpl, a.cert, a.key.Public(), a.key)
	testutil.Must(t, err)
	cert, err := x509.ParseCertificate(der)
	testutil.Must(t, err)
	return cert
}

func withCert(c *x509.Certificate) *http.Request {
	r := httptest.NewRequest("GET", "/pods", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}
	return r
}

func TestClientCertificatesAndReload(t *testing.T) {
	first, second := newAuthority(t, "first"), newAuthority(t, "second")
	path := filepath.Join(t.TempDir(), "ca.pem")
	write := func(data []byte, at time.Time) {
		t.Helper()
		testutil.Must(t, os.WriteFile(path, data, 0o600))
		testutil.Must(t, os.Chtimes(path, at, at))
	}
	write(first.pem, time.Now().Add(-time.Hour))
	auth, err := NewAuthenticator(Authentication{ClientCAs: path})
	testutil.Must(t, err)
	once, err := NewAuthenticator(Authentication{ClientCAs: path, ClientCAsOnce: true})
	testutil.Must(t, err)
	knows := func(c *x509.Certificate) string {
		r, ok, _ := auth.AuthenticateRequest(withCert(c))
		if !ok {
			return ""
		}
		return r.User.GetName() + " " + strings.Join(r.User.GetGroups(), ",")
	}
	good, foreign := first.client(t, "apiserver", "system:masters"), second.client(t, "intruder")
	if got := knows(good); got != "apiserver system:masters,system:authenticated" {
		t.Errorf("a client of the CA: %q", got)
	}
	if got := knows(foreign); got != "" {
		t.Errorf("a client of another CA: %q", got)
	}
	write([]byte("half a fi"), time.Now().Add(-time.Minute))
	if got := knows(good); got == "" {
		t.Error("a file that is just being written took the good CA away")
	}
	write(second.pem, time.Now())
	if got := knows(foreign); got == "" {
		t.Error("the new CA was not read")
	}
	if got := knows(good); got != "" {
		t.Errorf("the old CA is still good: %q", got)
	}
	for c, want := range map[*x509.Certificate]bool{good: true, foreign: false} {
		if _, ok, _ := once.AuthenticateRequest(withCert(c)); ok != want {
			t.Errorf("a CA that is read once accepts %s: %t", c.Subject, ok)
		}
	}
	if _, err := NewAuthenticator(Authentication{ClientCAs: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("a missing CA file is not refused")
	}
	if _, err := NewAuthenticator(Authentication{}); err == nil {
		t.Error("no way to authenticate is not refused")
	}
}

func TestTokensAreReviewedOnce(t *testing.T) {
	client := fake.NewSimpleClientset()
	calls := 0
	var fail error
	client.PrependReactor("create", "tokenreviews", func(a ktesting.Action) (bool, runtime.Object, error) {
		calls++
		r := a.(ktesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		if r.Spec.Token == "good" {
			r.Status = authenticationv1.TokenReviewStatus{Authenticated: true, User: authenticationv1.UserInfo{Username: "prometheus", Groups: []string{"monitors"}}}
		}
		return true, r, fail
	})
	auth, err := NewAuthenticator(Authentication{Tokens: client.AuthenticationV1().TokenReviews()})
	testutil.Must(t, err)
	ask := func(token string) (string, error) {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Header.Set("Authorization", "Bearer "+token)
		resp, ok, err := auth.AuthenticateRequest(r)
		if !ok {
			return "", err
		}
		return resp.User.GetName() + " " + strings.Join(resp.User.GetGroups(), ","), err
	}
	for range 3 {
		if got, err := ask("good"); got != "prometheus monitors,system:authenticated" || err != nil {
			t.Fatalf("%q %v", got, err)
		}
	}
	if calls != 1 {
		t.Errorf("a good token was reviewed %d times", calls)
	}
	for range 3 {
		if got, _ := ask("bad"); got != "" {
			t.Fatalf("a bad token is %q", got)
		}
	}
	if calls != 2 {
		t.Errorf("a bad token was reviewed %d times", calls-1)
	}
	fail = errors.New("away")
	if _, err := ask("other"); err == nil {
		t.Error("an API server that is away was no error")
	}
	fail = nil
	ask("other")
	if calls != 4 {
		t.Errorf("a failed review was remembered: %d calls, want 4", calls)
	}
}

func TestAccessIsReviewedAndRemembered(t *testing.T) {
	client := fake.NewSimpleClientset()
	var saw []*authorizationv1.SubjectAccessReview
	client.PrependReactor("create", "subjectaccessreviews", func(a ktesting.Action) (bool, runtime.Object, error) {
		r := a.(ktesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		saw = append(saw, r.DeepCopy())
		r.Status.Allowed = r.Spec.ResourceAttributes.Subresource == "metrics"
		return true, r, nil
	})
	z := NewAuthorizer(Authorization{Reviews: client.AuthorizationV1().SubjectAccessReviews()})
	ask := func(sub string) authorizer.Decision {
		d, _, err := z.Authorize(context.Background(), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: "p", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}},
			Verb: "get", APIVersion: "v1", Resource: "nodes", Subresource: sub, Name: "n1", ResourceRequest: true})
		testutil.Must(t, err)
		return d
	}
	for range 2 {
		if ask("metrics") != authorizer.DecisionAllow {
			t.Error("metrics was refused")
		}
		if ask("proxy") == authorizer.DecisionAllow {
			t.Error("proxy was allowed")
		}
	}
	if len(saw) != 2 {
		t.Fatalf("%d reviews, want 2: one for each question", len(saw))
	}
	s := saw[0].Spec
	if s.User != "p" || s.Groups[0] != "g" || s.Extra["k"][0] != "v" || s.ResourceAttributes.Name != "n1" || s.ResourceAttributes.Verb != "get" || s.ResourceAttributes.Resource != "nodes" {
		t.Errorf("the question was %+v", s)
	}
}

// TestAnonymous: if configured, a caller without a credential is accepted; one with a wrong
// credential is not.
func TestAnonymous(t *testing.T) {
	client := fake.NewSimpleClientset()
	client.PrependReactor("create", "tokenreviews", func(a ktesting.Action) (bool, runtime.Object, error) {
		return true, a.(ktesting.CreateAction).GetObject(), nil // not authenticated
	})
	auth, err := NewAuthenticator(Authentication{Tokens: client.AuthenticationV1().TokenReviews(), Anonymous: true})
	testutil.Must(t, err)
	r := httptest.NewRequest("GET", "/pods", nil)
	resp, ok, err := auth.AuthenticateRequest(r)
	if err != nil || !ok || resp.User.GetName() != "system:anonymous" || strings.Join(resp.User.GetGroups(), ",") != "system:unauthenticated" {
		t.Errorf("without a credential: %+v %v %v", resp, ok, err)
	}
	r.Header.Set("Authorization", "Bearer wrong")
	if resp, ok, _ := auth.AuthenticateRequest(r); ok {
		t.Errorf("with a wrong token: %+v", resp)
	}
}

// TestCacheTimes: the configured cache times are used; with a nanosecond nothing is cached.
func TestCacheTimes(t *testing.T) {
	client := fake.NewSimpleClientset()
	calls := map[string]int{}
	client.PrependReactor("create", "*", func(a ktesting.Action) (bool, runtime.Object, error) {
		calls[a.GetResource().Resource]++
		o := a.(ktesting.CreateAction).GetObject()
		switch r := o.(type) {
		case *authenticationv1.TokenReview:
			r.Status.Authenticated = r.Spec.Token == "good"
		case *authorizationv1.SubjectAccessReview:
			r.Status.Allowed = r.Spec.ResourceAttributes.Subresource == "metrics"
		}
		return true, o, nil
	})
	auth, err := NewAuthenticator(Authentication{Tokens: client.AuthenticationV1().TokenReviews(), TokenTTL: 1})
	testutil.Must(t, err)
	z := NewAuthorizer(Authorization{Reviews: client.AuthorizationV1().SubjectAccessReviews(), AllowTTL: 1, DenyTTL: 1})
	for range 2 {
		for _, token := range []string{"good", "bad"} {
			r := httptest.NewRequest("GET", "/pods", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			_, _, _ = auth.AuthenticateRequest(r)
		}
		for _, sub := range []string{"metrics", "proxy"} {
			if _, _, err := z.Authorize(context.Background(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "p"}, Subresource: sub}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if calls["tokenreviews"] != 4 || calls["subjectaccessreviews"] != 4 {
		t.Errorf("asked %v, want every question asked twice", calls)
	}
}

func TestAlwaysAllow(t *testing.T) {
	d, _, err := NewAuthorizer(Authorization{}).Authorize(context.Background(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "p"}, Verb: "create"})
	if d != authorizer.DecisionAllow || err != nil {
		t.Error(d, err)
	}
}

func TestServingFilesAreReloaded(t *testing.T) {
	dir := t.TempDir()
	crt, key := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	install := func(serial int64, at time.Time) {
		t.Helper()
		a := newAuthority(t, "ca")
		tpl := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour)}
		der, err := x509.CreateCertificate(rand.Reader, tpl, a.cert, a.key.Public(), a.key)
		testutil.Must(t, err)
		kder, err := x509.MarshalECPrivateKey(a.key)
		testutil.Must(t, err)
		for path, block := range map[string]*pem.Block{crt: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "EC PRIVATE KEY", Bytes: kder}} {
			testutil.Must(t, os.WriteFile(path, pem.EncodeToMemory(block), 0o600))
			testutil.Must(t, os.Chtimes(path, at, at))
		}
	}
	install(41, time.Now().Add(-time.Hour))
	get, err := CertFiles(crt, key, false)
	testutil.Must(t, err)
	once, err := CertFiles(crt, key, true)
	testutil.Must(t, err)
	before, err := once(nil)
	testutil.Must(t, err)
	serial := func() int64 {
		c, err := get(nil)
		testutil.Must(t, err)
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		testutil.Must(t, err)
		return leaf.SerialNumber.Int64()
	}
	if got := serial(); got != 41 {
		t.Errorf("serial %d, want 41", got)
	}
	install(42, time.Now())
	if got := serial(); got != 42 {
		t.Errorf("after the files changed: serial %d, want 42", got)
	}
	if after, err := once(nil); err != nil || after != before {
		t.Errorf("files that are read once are read again: %v", err)
	}
	if _, err := CertFiles(crt, filepath.Join(dir, "none"), false); err == nil {
		t.Error("a missing key is not refused")
	}
}
