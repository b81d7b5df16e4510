package podcerts

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"reflect"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// Keys are made one after another, and a slow one does not use up the timeout of the API calls.
func TestSlowKeys(t *testing.T) {
	some, err := rsa.GenerateKey(rand.Reader, 2048)
	testutil.Must(t, err)
	defer func(real func(int) (crypto.Signer, error)) { generateRSA = real }(generateRSA)
	synctest.Test(t, func(t *testing.T) {
		var at, most atomic.Int32
		generateRSA = func(int) (crypto.Signer, error) {
			if n := at.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(2 * callTimeout)
			at.Add(-1)
			return some, nil
		}
		w := begin(t)
		w.mu.Lock()
		w.sign = issue
		w.mu.Unlock()
		for i := range 3 {
			p := testPod(types.UID(fmt.Sprint("u", i)))
			p.Spec.Volumes[1].Projected.Sources[1].PodCertificate.KeyType = "RSA4096"
			_, err := w.bundle(p)
			w.want(err, "not issued yet")
		}
		time.Sleep(6*callTimeout + time.Second)
		if w.requests() != 3 || most.Load() != 1 {
			t.Errorf("%d requests, %d keys at once", w.requests(), most.Load())
		}
	})
}

func TestKeys(t *testing.T) {
	some, err := rsa.GenerateKey(rand.Reader, 2048)
	testutil.Must(t, err)
	asked := 0
	defer func(real func(int) (crypto.Signer, error)) { generateRSA = real }(generateRSA)
	generateRSA = func(bits int) (crypto.Signer, error) { asked = bits; return some, nil }
	for kind, want := range map[string]struct {
		key  any
		bits int
	}{
		"RSA3072": {&rsa.PrivateKey{}, 3072}, "RSA4096": {&rsa.PrivateKey{}, 4096}, "ED25519": {ed25519.PrivateKey{}, 0},
		"ECDSAP256": {&ecdsa.PrivateKey{}, 256}, "ECDSAP384": {&ecdsa.PrivateKey{}, 384}, "ECDSAP521": {&ecdsa.PrivateKey{}, 521},
	} {
		private, proof, err := newKey(kind)
		testutil.Must(t, err)
		block, rest := pem.Decode(private)
		if block == nil || block.Type != "PRIVATE KEY" || len(rest) != 0 {
			t.Fatalf("%s: %v", kind, block)
		}
		key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil || reflect.TypeOf(key) != reflect.TypeOf(want.key) {
			t.Errorf("%s is a %T, %v", kind, key, err)
		}
		bits := 0
		switch k := key.(type) {
		case *rsa.PrivateKey:
			bits = asked
		case *ecdsa.PrivateKey:
			bits = k.Curve.Params().BitSize
		}
		if bits != want.bits {
			t.Errorf("%s has %d bits", kind, bits)
		}
		request, err := x509.ParseCertificateRequest(proof)
		if err != nil || request.CheckSignature() != nil {
			t.Fatalf("%s: %v, %v", kind, err, request.CheckSignature())
		}
		signer, ok := key.(crypto.Signer)
		if public, is := request.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !is || !public.Equal(signer.Public()) {
			t.Errorf("%s: the request is for another key", kind)
		}
	}
	if _, _, err := newKey("DSA"); err == nil {
		t.Error("a key of an unknown type was made")
	}
}
