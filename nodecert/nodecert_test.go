package nodecert

import (
	"context"
	"crypto/tls"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

func client(t *testing.T, c Config) *Client {
	t.Helper()
	out, err := NewClient(t.Context(), c)
	testutil.Must(t, err)
	run(t, out.Run)
	return out
}

// get sends a request as the node, and returns the answer.
func get(t *testing.T, c *Client, path string) string {
	t.Helper()
	answer, err := begin(t, c, path)
	testutil.Must(t, err)
	return answer()
}

// begin sends a request, and returns when the answer has begun.
func begin(t *testing.T, c *Client, path string) (func() string, error) {
	t.Helper()
	h, err := rest.HTTPClientFor(c.REST())
	testutil.Must(t, err)
	r, err := h.Get(c.REST().Host + path)
	if err != nil {
		return nil, err
	}
	return func() string {
		defer r.Body.Close()
		data, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%s: %s %s %v", path, r.Status, data, err)
		}
		return string(data)
	}, nil
}

// lastSeen is the user and serial of the last GET /version.
func (c *cluster) lastSeen() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.seen) == 0 {
		return ""
	}
	return c.seen[len(c.seen)-1]
}

// TestBootstrap: a bootstrap token gets the first certificate, which is stored for this user only.
// A later process uses it without the token.
func TestBootstrap(t *testing.T) {
	s := newCluster(t)
	dir := filepath.Join(t.TempDir(), "pki")
	c := client(t, Config{NodeName: "n1", Directory: dir, Asker: s.asker("first")})
	testutil.Must(t, c.Wait(t.Context()))
	get(t, c, "/version")
	if got := s.lastSeen(); got != "system:node:n1 101" {
		t.Errorf("it comes as %q", got)
	}
	if got := s.asked(); !slices.Equal(got, []string{"system:bootstrap:first kube-apiserver-client-kubelet"}) {
		t.Errorf("requests: %q", got)
	}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil {
			t.Errorf("%v %v", err, statErr)
		} else if info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %s", path, info.Mode())
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}

	s.mu.Lock()
	s.tokens = nil // it has expired
	s.mu.Unlock()
	again := client(t, Config{NodeName: "n1", Directory: dir, Asker: s.asker("first")})
	testutil.Must(t, again.Wait(t.Context()))
	get(t, again, "/version")
	if got := s.lastSeen(); got != "system:node:n1 101" || len(s.asked()) != 1 {
		t.Errorf("the next process comes as %q, after %q", got, s.asked())
	}
}

// TestRenewalHasNoPause: a certificate near its end is renewed with itself. Requests in progress
// with the old one are not interrupted, and later ones use the new one.
func TestRenewalHasNoPause(t *testing.T) {
	s := newCluster(t)
	dir := t.TempDir()
	now := time.Now()
	s.keep(dir, "client", 7, now.Add(-50*time.Hour), now.Add(time.Hour))
	s.mu.Lock()
	s.tokens, s.auto = nil, false // only with the old certificate, and not at once
	s.mu.Unlock()
	c, err := NewClient(t.Context(), Config{NodeName: "n1", Directory: dir, Asker: s.asker("first")})
	testutil.Must(t, err)
	get(t, c, "/version")
	if got := s.lastSeen(); got != "system:node:n1 7" {
		t.Fatalf("it comes as %q", got)
	}
	watch, err := begin(t, c, "/hold")
	testutil.Must(t, err)
	<-s.holds
	s.mu.Lock()
	s.auto = true
	s.mu.Unlock()
	run(t, c.Run)
	testutil.Eventually(t, "requests go by the new certificate", func() bool {
		get(t, c, "/version")
		return s.lastSeen() == "system:node:n1 101"
	})
	if got := s.asked(); !slices.Equal(got, []string{"system:node:n1 kube-apiserver-client-kubelet"}) {
		t.Errorf("requests: %q", got)
	}
	close(s.release)
	if got := watch(); got != "whole" {
		t.Errorf("what was under way ended with %q", got)
	}
}

// TestRefused: without the right to request, or to read the answer, the error gives the reason.
func TestRefused(t *testing.T) {
	for name, tc := range map[string]struct{ token, forbid, want string }{
		"a token that is not known": {"other", "", "ask for a certificate: Unauthorized"},
		"no right to ask":           {"first", "create", `ask for a certificate: User "system:bootstrap:first" cannot create`},
		"no right to see":           {"first", "list", "read request csr-0"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newCluster(t)
			s.forbid = tc.forbid
			c := client(t, Config{NodeName: "n1", Directory: t.TempDir(), Asker: s.asker(tc.token)})
			if err := c.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if c.Current() != nil {
				t.Error("there is a certificate")
			}
		})
	}
}

// TestApprovedLater: Wait waits for the approval, and uses the certificate then.
func TestApprovedLater(t *testing.T) {
	s := newCluster(t)
	s.auto = false
	c := client(t, Config{NodeName: "n1", Directory: t.TempDir(), Asker: s.asker("first")})
	testutil.Eventually(t, "the request is there", func() bool { return len(s.asked()) == 1 })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Wait(ctx); err != context.Canceled {
		t.Errorf("it does not wait: %v", err)
	}
	if _, err := begin(t, c, "/version"); err == nil {
		t.Error("it goes to the API server without a certificate")
	}
	s.mu.Lock()
	s.sign(s.requests[0]) // as if a person had approved it
	s.mu.Unlock()
	testutil.Must(t, c.Wait(t.Context()))
	get(t, c, "/version")
	if got := s.lastSeen(); got != "system:node:n1 101" {
		t.Errorf("it comes as %q", got)
	}
}

// TestApprovesItself: a process that approves does so for the first request and for renewals.
func TestApprovesItself(t *testing.T) {
	s := newCluster(t)
	s.auto = false
	s.tokens = map[string]string{"sa": "system:serviceaccount:bowline:bowline"}
	dir := t.TempDir()
	now := time.Now()
	s.keep(dir, "client", 7, now.Add(-50*time.Hour), now.Add(time.Hour))
	c := client(t, Config{NodeName: "n1", Directory: dir, Asker: s.asker("sa"), Approve: true})
	testutil.Eventually(t, "the certificate is renewed", func() bool { return c.Current().Leaf.SerialNumber.Int64() == 101 })
	if got := s.asked(); !slices.Equal(got, []string{"system:serviceaccount:bowline:bowline kube-apiserver-client-kubelet"}) {
		t.Errorf("requests: %q", got)
	}
	if !slices.Equal(s.approved, []string{"system:serviceaccount:bowline:bowline"}) {
		t.Errorf("approved by %q", s.approved)
	}
	s = newCluster(t)
	s.auto, s.forbid = false, "approve"
	c = client(t, Config{NodeName: "n1", Directory: t.TempDir(), Asker: s.asker("first"), Approve: true})
	if err := c.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "approve request csr-0 for signer kubernetes.io/kube-apiserver-client-kubelet: ") {
		t.Errorf("without the right to approve: %v", err)
	}
}

// TestServing: the node presents its own certificate until the cluster's is signed, and a renewed
// one later, without a new listener.
func TestServing(t *testing.T) {
	s := newCluster(t)
	s.auto = false
	dir := t.TempDir()
	now := time.Now()
	s.keep(dir, "client", 7, now.Add(-time.Hour), now.Add(50*time.Hour))
	node := client(t, Config{NodeName: "n1", Directory: dir, Asker: s.asker("first")})
	own := &tls.Certificate{}
	serving, err := NewServing(t.Context(), ServingConfig{NodeName: "n1", Directory: dir, IPs: func() []net.IP { return []net.IP{net.ParseIP("192.0.2.7")} }, Node: node.REST(),
		Until: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own, nil }})
	testutil.Must(t, err)
	run(t, serving.Run)
	testutil.Eventually(t, "the request is there", func() bool { return len(s.asked()) == 1 })
	if got, err := serving.Get(nil); got != own || err != nil {
		t.Errorf("before it is approved it shows %v, %v", got, err)
	}
	if got := s.asked(); !slices.Equal(got, []string{"system:node:n1 kubelet-serving"}) {
		t.Errorf("requests: %q", got)
	}

	// The next process has one near its end that lacks an address.
	other := t.TempDir()
	s.keep(other, "serving", 8, now.Add(-50*time.Hour), now.Add(time.Hour))
	approver := s.asker("first")
	serving, err = NewServing(t.Context(), ServingConfig{NodeName: "n1", Directory: other, IPs: func() []net.IP { return []net.IP{net.ParseIP("192.0.2.7")} }, Node: node.REST(), Approver: approver,
		Until: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own, nil }})
	testutil.Must(t, err)
	if got, _ := serving.Get(nil); got == own || got.Leaf.SerialNumber.Int64() != 8 {
		t.Error("what was kept is not shown")
	}
	run(t, serving.Run)
	testutil.Eventually(t, "the renewed one is shown", func() bool { got, _ := serving.Get(nil); return got.Leaf.SerialNumber.Int64() > 100 })
	got, _ := serving.Get(nil)
	if err := got.Leaf.VerifyHostname("192.0.2.7"); err != nil {
		t.Error(err)
	}
	if !slices.Equal(s.approved, []string{"system:bootstrap:first"}) {
		t.Errorf("approved by %q", s.approved)
	}
}
