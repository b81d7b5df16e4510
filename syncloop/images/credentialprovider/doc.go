// Package credentialprovider runs credential providers: programs that return the credentials for an
// image (the kubelet's --image-credential-provider-config and --image-credential-provider-bin-dir).
// They run on the machine of this process, as its user, whichever host pulls the image: the
// credentials that they work with need not be on a remote host.
//
// A program is run for an image that matches one of its matchImages. It gets a
// CredentialProviderRequest on its standard input and answers with a CredentialProviderResponse.
// Answers are cached in memory for as long as they say, by image, by registry or for all images;
// with tokenAttributes also by service account. A program's output and the token that it gets
// appear in no log and no error.
package credentialprovider

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	kubeletconfig "k8s.io/kubelet/config/v1"
	credentialapi "k8s.io/kubelet/pkg/apis/credentialprovider"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/syncloop/images"
)

// Accounts reads the cluster's service accounts.
type Accounts interface {
	ServiceAccount(ctx context.Context, namespace, name string) (*v1.ServiceAccount, error)
}

// Tokens gets tokens bound to a pod; tokens.Manager implements it.
type Tokens interface {
	// AccountToken returns a token of the pod's service account with this UID.
	AccountToken(ctx context.Context, p *v1.Pod, uid types.UID, audience string) (string, error)
}

// Set is a set of providers, in the order of their configuration. Its methods are safe for
// concurrent use.
type Set struct {
	providers []*provider
	accounts  Accounts
	tokens    Tokens
}

// New makes a Set of the programs that Load returned. It starts nothing. ran is called after each run
// of a program, with its name; it may be nil.
func New(programs []Program, accounts Accounts, tokens Tokens, ran func(name string, took time.Duration, err error)) (*Set, error) {
	if accounts == nil || tokens == nil {
		return nil, errors.New("credentialprovider: accounts and tokens are required")
	}
	if ran == nil {
		ran = func(string, time.Duration, error) {}
	}
	s := &Set{accounts: accounts, tokens: tokens}
	share := make(chan struct{}, runsOfNode)
	for _, p := range programs {
		s.providers = append(s.providers, &provider{Program: p, run: p.run, ran: ran, share: share, cache: map[cacheKey]cached{}, flights: map[flightKey]*flight{}})
	}
	return s, nil
}

// Credentials returns the credentials of all providers that fit the repository. A provider's
// failure is only logged: the image may not need it, and if it does, the registry refuses the pull.
func (s *Set) Credentials(ctx context.Context, p *v1.Pod, repository string) []images.Credential {
	ring := images.Keyring{}
	for _, one := range s.providers {
		auth, account, err := s.ask(ctx, one, p, repository)
		if err != nil {
			if ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Failed to get credentials from a provider", hint.With(err, "provider", one.Config.Name, "image", repository,
					"pod", klog.KObj(p), "podUID", p.UID, "serviceAccount", p.Spec.ServiceAccountName)...)
			}
			continue
		}
		for registry, a := range auth {
			ring.Add(registry, images.Credential{Auth: &runtimeapi.AuthConfig{Username: a.Username, Password: a.Password}, Account: account})
		}
	}
	return ring.Lookup(repository)
}

// ask returns the answer of one provider, or its cache. The account is nil if no token was used.
func (s *Set) ask(ctx context.Context, one *provider, p *v1.Pod, repository string) (answer, *images.AccountID, error) {
	if !one.handles(repository) {
		return nil, nil, nil
	}
	q, account, applies, err := s.question(ctx, one.Config.TokenAttributes, p, repository)
	if err != nil || !applies {
		return nil, nil, err
	}
	auth, err := one.get(ctx, q)
	return auth, account, err
}

// question builds the request to a provider, with the scope of its cached answer. applies is false
// if the provider requires a service account, or annotations of it, that the pod does not have.
func (s *Set) question(ctx context.Context, t *kubeletconfig.ServiceAccountTokenAttributes, p *v1.Pod, repository string) (q question, _ *images.AccountID, applies bool, err error) {
	q.image = repository
	name := p.Spec.ServiceAccountName
	switch {
	case t == nil:
		return q, nil, true, nil
	case name == "":
		return q, nil, !*t.RequireServiceAccount, nil
	}
	account, err := onceAllowed(ctx, func() (*v1.ServiceAccount, error) { return s.accounts.ServiceAccount(ctx, p.Namespace, name) })
	if err != nil {
		return q, nil, false, fmt.Errorf("read service account %s/%s: %w", p.Namespace, name, err)
	}
	q.annotations = map[string]string{}
	for _, k := range t.RequiredServiceAccountAnnotationKeys {
		value, ok := account.Annotations[k]
		if !ok {
			klog.FromContext(ctx).V(5).Info("Skipped a credential provider: the service account lacks an annotation", "image", repository, "annotation", k)
			return q, nil, false, nil
		}
		q.annotations[k] = value
	}
	for _, k := range t.OptionalServiceAccountAnnotationKeys {
		if value, ok := account.Annotations[k]; ok {
			q.annotations[k] = value
		}
	}
	q.token, err = onceAllowed(ctx, func() (string, error) {
		return s.tokens.AccountToken(ctx, p, account.UID, t.ServiceAccountTokenAudience)
	})
	if err != nil {
		return q, nil, false, err
	}
	q.mayEcho = t.CacheType == kubeletconfig.TokenServiceAccountTokenCacheType
	q.scope = scope(p.Namespace, name, account.UID, q.annotations)
	if q.mayEcho {
		q.scope += hash(q.token)
	}
	return q, &images.AccountID{Namespace: p.Namespace, Name: name, UID: account.UID}, true, nil
}

// patience bounds the retries while the API server forbids the token of a new pod: about 3 s.
var patience = wait.Backoff{Duration: 100 * time.Millisecond, Factor: 2, Steps: 6}

// onceAllowed retries while the API server forbids the request. The Node authorizer learns which
// pods are on this node by a watch of its own, which may be behind ours. Without the credentials
// the pull would fail, and the pod would wait for the back-off.
func onceAllowed[T any](ctx context.Context, ask func() (T, error)) (T, error) {
	var out T
	var err error
	_ = wait.ExponentialBackoffWithContext(ctx, patience, func(context.Context) (bool, error) {
		out, err = ask()
		return !apierrors.IsForbidden(err), nil
	})
	if err == nil {
		err = ctx.Err() // the loop may have ended before the first call
	}
	return out, err
}

// question is a request to a program.
type question struct {
	image       string // domain and path
	token       string // empty: none
	annotations map[string]string
	// scope of the cached answer besides the image: the service account; empty if it does not
	// matter.
	scope string
	// mayEcho is set if the answer may contain the token itself.
	mayEcho bool
}

// answer is a set of credentials by registry.
type answer map[string]credentialapi.AuthConfig

// provider is one program and its cached answers.
type provider struct {
	Program
	run func(ctx context.Context, q question) (*credentialapi.CredentialProviderResponse, error)
	ran func(name string, took time.Duration, err error)
	// share has a token for each run of this Set.
	share chan struct{}

	mu      sync.Mutex
	cache   map[cacheKey]cached
	flights map[flightKey]*flight
}

func (p *provider) handles(repository string) bool {
	for _, glob := range p.Config.MatchImages {
		if images.Fits(glob, repository) {
			return true
		}
	}
	return false
}

// deadline bounds one run, without the time that it waits for its turn.
const deadline = time.Minute

// A pod may have 128 images of different repositories, and each run is a process of tens of MiB beside
// this one.
const (
	runsOfNode    = 2
	runsOfProcess = 8
)

// running has a token for each run, for all nodes of the process.
var running = make(chan struct{}, runsOfProcess)
