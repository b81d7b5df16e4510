package connect

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

func TestSecretLogin(t *testing.T) {
	secrets := schema.GroupResource{Resource: "secrets"}
	away := &net.OpError{Op: "dial", Net: "tcp", Err: errors.New("connection refused")}
	key := map[string][]byte{"ssh-privatekey": []byte("key"), "passphrase": []byte("word\n"), "ssh-publickey-cert": []byte("cert")}
	newer := map[string][]byte{"ssh-privatekey": []byte("newer")}
	type answer struct {
		data map[string][]byte
		err  error
	}
	for name, tc := range map[string]struct {
		answers []answer
		key     string // of the last login
		fails   string // of the last login
		later   bool   // it is of use to try again soon
	}{
		"read":                     {[]answer{{data: key}}, "key", "", false},
		"read at each login":       {[]answer{{data: key}, {data: newer}}, "newer", "", false},
		"away":                     {[]answer{{data: key}, {err: away}}, "key", "", false},
		"away, and then newer":     {[]answer{{data: key}, {err: away}, {data: newer}}, "newer", "", false},
		"away from the start":      {[]answer{{err: away}}, "", "connection refused", true},
		"in trouble":               {[]answer{{data: key}, {err: apierrors.NewInternalError(errors.New("etcd"))}}, "key", "", false},
		"removed":                  {[]answer{{data: key}, {err: apierrors.NewNotFound(secrets, "box")}}, "", "the Secret keys/box", false},
		"forbidden":                {[]answer{{data: key}, {err: apierrors.NewForbidden(secrets, "box", nil)}}, "", "may not read the Secret keys/box", false},
		"without a key":            {[]answer{{data: map[string][]byte{"tls.key": nil}}}, "", "has no ssh-privatekey", false},
		"removed while it is away": {[]answer{{data: key}, {err: apierrors.NewNotFound(secrets, "box")}, {err: away}}, "", "connection refused", true},
	} {
		t.Run(name, func(t *testing.T) {
			s := &secretLogin{name: "keys/box", kubeconfig: "k"}
			var got endpoint.Login
			var err error
			for _, a := range tc.answers {
				s.get = func(ctx context.Context) (*v1.Secret, error) {
					if _, has := ctx.Deadline(); !has {
						t.Error("no deadline")
					}
					return &v1.Secret{Data: a.data}, a.err
				}
				got, err = s.login(t.Context())
			}
			if string(got.Key) != tc.key || (err != nil) != (tc.fails != "") || err != nil && !strings.Contains(err.Error(), tc.fails) {
				t.Errorf("got %q, %v", string(got.Key), err)
			}
			var auth *endpoint.AuthError
			if err != nil && errors.As(err, &auth) == tc.later {
				t.Errorf("%v: is it of use to try again soon?", err)
			}
			if tc.key == "key" && (string(got.Passphrase) != "word" || string(got.Certificate) != "cert") {
				t.Errorf("passphrase %q, certificate %q", string(got.Passphrase), string(got.Certificate))
			}
		})
	}
}
