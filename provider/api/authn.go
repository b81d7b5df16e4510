package api

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	requestx509 "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/authentication/user"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
)

// authn.go and authz.go do what apiserver's authenticatorfactory and authorizerfactory do. Those
// link OpenTelemetry's exporters and CEL, about 18 MiB of resident memory before the first request.
// The cache times are the kubelet's.
const (
	tokenTTL      = 2 * time.Minute
	allowTTL      = 5 * time.Minute
	denyTTL       = 30 * time.Second
	reviewTimeout = 10 * time.Second
	cacheEntries  = 1024
)

// Authentication configures how callers authenticate.
type Authentication struct {
	// ClientCAs is a PEM file of the CAs of client certificates, re-read when it changes; empty:
	// client certificates are not accepted.
	ClientCAs string
	// ClientCAsOnce: a change of ClientCAs has no effect.
	ClientCAsOnce bool
	// Tokens reviews bearer tokens; nil: tokens are not accepted.
	Tokens authenticationclient.TokenReviewInterface
	// TokenTTL is how long the result of a review is cached; default 2 min.
	TokenTTL time.Duration
	// Anonymous accepts a caller without a credential as system:anonymous. A wrong credential is
	// refused nevertheless.
	Anonymous bool
}

// NewAuthenticator authenticates callers by the methods in a.
func NewAuthenticator(a Authentication) (authenticator.Request, error) {
	var ways []authenticator.Request
	if a.ClientCAs != "" {
		pool := &file[*x509.CertPool]{paths: []string{a.ClientCAs}, parse: parsePool}
		first, err := pool.get()
		if err != nil {
			return nil, fmt.Errorf("client CA: %w", err)
		}
		ways = append(ways, requestx509.NewDynamic(func() (x509.VerifyOptions, bool) {
			roots, err := first, error(nil)
			if !a.ClientCAsOnce {
				roots, err = pool.get()
			}
			o := requestx509.DefaultVerifyOptions()
			o.Roots = roots
			return o, err == nil
		}, requestx509.CommonNameUserConversion))
	}
	if a.Tokens != nil {
		review := &tokenReview{client: a.Tokens, ttl: cmp.Or(a.TokenTTL, tokenTTL), cache: utilcache.NewLRUExpireCache(cacheEntries)}
		ways = append(ways, bearertoken.New(review), websocket.NewProtocolAuthenticator(review))
	}
	known := group.NewAuthenticatedGroupAdder(union.New(ways...))
	switch {
	case a.Anonymous:
		return union.NewFailOnError(known, authenticator.RequestFunc(anonymous)), nil
	case len(ways) == 0:
		return nil, errors.New("kubelet API: neither a client CA nor token review is configured, so it would refuse every request")
	}
	return known, nil
}

func anonymous(*http.Request) (*authenticator.Response, bool, error) {
	return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous, Groups: []string{user.AllUnauthenticated}}}, true, nil
}

func parsePool(files [][]byte) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(files[0]) {
		return nil, errors.New("no PEM certificate in it")
	}
	return pool, nil
}

// tokenReview authenticates tokens by a TokenReview of the API server.
type tokenReview struct {
	client authenticationclient.TokenReviewInterface
	ttl    time.Duration
	cache  *utilcache.LRUExpireCache // by the token's hash; not a user.Info if the token was refused
}

func (t *tokenReview) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	key := sha256.Sum256([]byte(token)) // so that the cache has no secrets
	if hit, ok := t.cache.Get(key); ok {
		u, known := hit.(user.Info)
		if !known {
			return nil, false, nil
		}
		return &authenticator.Response{User: u}, true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	r, err := t.client.Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return nil, false, fmt.Errorf("ask the API server about a token: %w", err)
	}
	if !r.Status.Authenticated {
		t.cache.Add(key, struct{}{}, t.ttl)
		return nil, false, nil
	}
	u := &user.DefaultInfo{Name: r.Status.User.Username, UID: r.Status.User.UID, Groups: r.Status.User.Groups, Extra: map[string][]string{}}
	for k, v := range r.Status.User.Extra {
		u.Extra[k] = v
	}
	t.cache.Add(key, user.Info(u), t.ttl)
	return &authenticator.Response{User: u}, true, nil
}
