package api

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"os"
	"sync"
	"time"
)

// file is a value parsed from files of our own process (not of the machine), re-read when they
// change. If a change cannot be read or parsed, the last good value stays, because files are
// replaced one after the other.
type file[T any] struct {
	paths []string
	parse func([][]byte) (T, error)

	mu    sync.Mutex
	stamp []time.Time
	raw   [][]byte
	value T
	good  bool
}

func (f *file[T]) get() (T, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.refresh()
	if f.good {
		return f.value, nil
	}
	return f.value, err
}

func (f *file[T]) refresh() error {
	stamp := make([]time.Time, len(f.paths))
	same := f.good
	for i, p := range f.paths {
		info, err := os.Stat(p)
		if err != nil {
			return err
		}
		stamp[i] = info.ModTime()
		same = same && stamp[i].Equal(f.stamp[i])
	}
	if same {
		return nil
	}
	raw := make([][]byte, len(f.paths))
	changed := !f.good
	for i, p := range f.paths {
		data, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		raw[i] = data
		changed = changed || !bytes.Equal(data, f.raw[i])
	}
	if changed {
		value, err := f.parse(raw)
		if err != nil {
			return fmt.Errorf("%v: %w", f.paths, err)
		}
		f.value = value
	}
	f.stamp, f.raw, f.good = stamp, raw, true
	return nil
}

// CertFiles serves the certificate in PEM files, re-read when they change, unless they are to be read once.
func CertFiles(certFile, keyFile string, once bool) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	f := &file[*tls.Certificate]{paths: []string{certFile, keyFile}, parse: func(pem [][]byte) (*tls.Certificate, error) {
		c, err := tls.X509KeyPair(pem[0], pem[1])
		return &c, err
	}}
	first, err := f.get()
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	if once {
		return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return first, nil }, nil
	}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return f.get() }, nil
}

// SelfSigned makes a serving certificate for a year, as a kubelet without one does. An API server
// that is not configured to verify it accepts it.
func SelfSigned(nodeName string, ips []net.IP) (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("serving key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + nodeName},
		NotBefore:    now.Add(-5 * time.Minute),
		NotAfter:     now.AddDate(1, 0, 0),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:     []string{nodeName},
		IPAddresses:  ips,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("serving certificate: %w", err)
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
	return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c, nil }, nil
}
