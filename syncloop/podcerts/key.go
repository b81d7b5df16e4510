package podcerts

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
)

// newKey makes a private key of one of the API's key types, in PKCS #8, and a certificate request
// that proves its possession and is otherwise empty.
func newKey(kind string) (privateKey, proof []byte, err error) {
	made, err := generate(kind)
	if err != nil {
		return nil, nil, err
	}
	if proof, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, made); err != nil {
		return nil, nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(made)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), proof, nil
}

// generateRSA is replaced in tests, because an RSA key takes seconds.
var generateRSA = func(bits int) (crypto.Signer, error) { return rsa.GenerateKey(rand.Reader, bits) }

func generate(kind string) (crypto.Signer, error) {
	switch kind {
	case "RSA3072":
		return generateRSA(3072)
	case "RSA4096":
		return generateRSA(4096)
	case "ECDSAP256":
		return ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		return ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		return ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, made, err := ed25519.GenerateKey(rand.Reader)
		return made, err
	}
	return nil, errors.New("this node makes no keys of that type")
}

// certificates returns the certificate blocks of a chain, without any text between them.
func certificates(chain string) []byte {
	var out bytes.Buffer
	for rest := []byte(chain); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return out.Bytes()
		}
		out.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block.Bytes}))
	}
}
