package pki

import (
	"crypto/x509"
	"net/netip"
	"os"
	"testing"

	"github.com/bowline-k8s/bowline/lab/internal/testutil"
)

func TestIssueKeepsWhatIsGoodAndReplacesWhatIsNot(t *testing.T) {
	dir := t.TempDir()
	ca, err := Open(dir, "ca", "test-ca")
	testutil.Must(t, err)
	leaf := Leaf{Name: "server", CommonName: "system:node:n", Organization: []string{"system:nodes"},
		DNS: []string{"n"}, IPs: []netip.Addr{netip.MustParseAddr("172.29.0.11")}, Server: true}
	read := func() string {
		t.Helper()
		cert, key, err := ca.Issue(leaf)
		testutil.Must(t, err)
		parsed, _, err := load(cert, key)
		testutil.Must(t, err)
		pool := x509.NewCertPool()
		pool.AddCert(ca.cert)
		for _, name := range []string{"n", "172.29.0.11"} {
			if _, err := parsed.Verify(x509.VerifyOptions{Roots: pool, DNSName: name}); err != nil {
				t.Errorf("for %s: %v", name, err)
			}
		}
		data, err := os.ReadFile(cert)
		testutil.Must(t, err)
		return string(data)
	}
	first := read()
	if read() != first {
		t.Error("a good certificate was made again")
	}
	if ca, err = Open(dir, "ca", "test-ca"); err != nil {
		t.Fatal(err)
	}
	if read() != first {
		t.Error("the authority was made again")
	}
	leaf.DNS = append(leaf.DNS, "other")
	if read() == first {
		t.Error("a certificate without the new name was kept")
	}
	for _, file := range []string{"ca.crt", "ca.key"} {
		testutil.Must(t, os.Remove(dir+"/"+file))
	}
	second := read()
	if ca, err = Open(dir, "ca", "test-ca"); err != nil {
		t.Fatal(err)
	}
	if read() == second {
		t.Error("a certificate of another authority was kept")
	}
}
