// Package pki makes the lab's authorities, keys, certificates and kubeconfigs. It keeps existing
// ones that are still valid.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

const (
	authorityLife = 10 * 365 * 24 * time.Hour
	leafLife      = 365 * 24 * time.Hour
	// renewBefore is how long before its expiry a certificate is reissued.
	renewBefore = 30 * 24 * time.Hour
)

// Authority is a certificate authority kept at Dir/Name.crt and Dir/Name.key.
type Authority struct {
	Dir, Name string
	cert      *x509.Certificate
	key       *ecdsa.PrivateKey
}

// Leaf describes a certificate, kept at Dir/Name.crt and Dir/Name.key.
type Leaf struct {
	Name         string
	CommonName   string
	Organization []string
	DNS          []string
	IPs          []netip.Addr
	Server       bool // valid for a server as well as for a client
}

// Open loads the authority of that name, or makes it.
func Open(dir, name, commonName string) (*Authority, error) {
	a := &Authority{Dir: dir, Name: name}
	cert, key, err := load(a.CertFile(), a.keyFile())
	if err == nil && time.Now().Add(renewBefore).Before(cert.NotAfter) {
		a.cert, a.key = cert, key
		return a, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("authority %s: %w; remove its directory to recreate it", name, err)
	}
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial(),
		Subject:               pkix.Name{CommonName: commonName},
		DNSNames:              []string{commonName},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(authorityLife),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, a.key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, err
	}
	return a, save(a.CertFile(), a.keyFile(), der, a.key)
}

// CertFile is the path of the authority's certificate.
func (a *Authority) CertFile() string { return filepath.Join(a.Dir, a.Name+".crt") }
func (a *Authority) keyFile() string  { return filepath.Join(a.Dir, a.Name+".key") }

// Issue makes the certificate unless a valid one by this authority, for the same names, exists. It
// returns the paths of certificate and key.
func (a *Authority) Issue(l Leaf) (certFile, keyFile string, err error) {
	certFile, keyFile = filepath.Join(a.Dir, l.Name+".crt"), filepath.Join(a.Dir, l.Name+".key")
	if cert, _, err := load(certFile, keyFile); err == nil && a.good(cert, l) {
		return certFile, keyFile, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	template := &x509.Certificate{
		SerialNumber: serial(),
		Subject:      pkix.Name{CommonName: l.CommonName, Organization: l.Organization},
		DNSNames:     l.DNS,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(leafLife),
		KeyUsage:     x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if l.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, ip := range l.IPs {
		template.IPAddresses = append(template.IPAddresses, net.IP(ip.AsSlice()))
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return "", "", err
	}
	return certFile, keyFile, save(certFile, keyFile, der, key)
}

// good reports whether an existing certificate satisfies the request.
func (a *Authority) good(cert *x509.Certificate, l Leaf) bool {
	if cert.CheckSignatureFrom(a.cert) != nil || cert.Subject.CommonName != l.CommonName ||
		time.Now().Add(renewBefore).After(cert.NotAfter) {
		return false
	}
	for _, name := range l.DNS {
		if cert.VerifyHostname(name) != nil {
			return false
		}
	}
	for _, ip := range l.IPs {
		if cert.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	return true
}

// SigningKey makes the key pair that signs service account tokens, at dir/name.key and
// dir/name.pub.
func SigningKey(dir, name string) (public, private string, err error) {
	public, private = filepath.Join(dir, name+".pub"), filepath.Join(dir, name+".key")
	if _, err := os.Stat(public); err == nil {
		return public, private, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return "", "", err
	}
	if err := writeKey(private, key); err != nil {
		return "", "", err
	}
	return public, private, os.WriteFile(public, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o644)
}

// Kubeconfig writes a kubeconfig with embedded certificates. server is the API server's URL;
// caFile, certFile and keyFile are PEM files.
func Kubeconfig(path, server, user, caFile, certFile, keyFile string) error {
	var encoded [3]string
	for i, file := range []string{caFile, certFile, keyFile} {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		encoded[i] = base64.StdEncoding.EncodeToString(data)
	}
	config := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: lab
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: %q
  user:
    client-certificate-data: %s
    client-key-data: %s
contexts:
- name: lab
  context:
    cluster: lab
    user: %q
current-context: lab
`, server, encoded[0], user, encoded[1], encoded[2], user)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	// A concurrent reader must not find half of the file.
	if old, err := os.ReadFile(path); err == nil && string(old) == config {
		return nil
	}
	tmp := path + ".tmp"
	if err := os.WriteFile(tmp, []byte(config), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func serial() *big.Int {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		panic(err) // crypto/rand never fails
	}
	return n.Add(n, big.NewInt(1))
}

func load(certFile, keyFile string) (*x509.Certificate, *ecdsa.PrivateKey, error) {
	certPEM, err := os.ReadFile(certFile)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, nil, err
	}
	certBlock, _ := pem.Decode(certPEM)
	keyBlock, _ := pem.Decode(keyPEM)
	if certBlock == nil || keyBlock == nil {
		return nil, nil, fmt.Errorf("%s or its key is not PEM", certFile)
	}
	cert, err := x509.ParseCertificate(certBlock.Bytes)
	if err != nil {
		return nil, nil, err
	}
	key, err := x509.ParseECPrivateKey(keyBlock.Bytes)
	return cert, key, err
}

// save writes the key before the certificate: if a certificate exists, so does its key.
func save(certFile, keyFile string, der []byte, key *ecdsa.PrivateKey) error {
	if err := writeKey(keyFile, key); err != nil {
		return err
	}
	return os.WriteFile(certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

func writeKey(path string, key *ecdsa.PrivateKey) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}
