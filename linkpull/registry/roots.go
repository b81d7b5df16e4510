package registry

import (
	"crypto/x509"
	"fmt"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// Roots returns the certificate authorities of public registries, and those in the PEM file caFile unless that
// is empty. The public ones are the system's. Bowline's own image has none, because the API server's CA comes
// with the service account and must stay the only one that counts there; for registries Mozilla's list is
// used, as it was when the program was built.
func Roots(caFile string) (*x509.CertPool, error) {
	pool, err := x509.SystemCertPool()
	if err != nil || pool.Equal(x509.NewCertPool()) {
		if pool, err = builtIn(); err != nil {
			return nil, err
		}
	}
	if caFile == "" {
		return pool, nil
	}
	pem, err := os.ReadFile(caFile)
	if err != nil {
		return nil, fmt.Errorf("read the CAs of registries: %w", err)
	}
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("read the CAs of registries: %s has no certificate in PEM", caFile)
	}
	return pool, nil
}

func builtIn() (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	for root := range bundle.Roots() {
		cert, err := x509.ParseCertificate(root.Certificate)
		if err != nil {
			return nil, fmt.Errorf("read the CAs of public registries: %w", err)
		}
		if root.Constraint == nil {
			pool.AddCert(cert)
		} else {
			pool.AddCertWithConstraint(cert, root.Constraint)
		}
	}
	return pool, nil
}
