// Package tokens gets service account tokens that are bound to one pod, by the TokenRequest API,
// and keeps them fresh. It requests a new token at 80 % of the old one's life or after 24 hours,
// minus a random jitter, so that the tokens of many pods do not fall due at once. Tokens stay in
// memory only, until the pod is gone, and appear in no log and no error.
package tokens

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/notify"
	"github.com/bowline-k8s/bowline/wall"
)

const (
	maxAge    = 24 * time.Hour
	maxJitter = 10 * time.Second
	// defaultLife is the API server's default for a request without expirationSeconds.
	defaultLife = time.Hour
	// retryAfter is the pause after a failed refresh while the current token is still valid.
	retryAfter = 10 * time.Second
	// rest is the least time between two requests for a token that only its API expiry makes due:
	// by a clock that is ahead of the API server's, that may be past when the token comes.
	rest = 5 * time.Minute
	// defaultTimeout bounds one TokenRequest.
	defaultTimeout = 10 * time.Second
)

// Config configures a Manager.
type Config struct {
	Client corev1client.ServiceAccountsGetter // such as clientset.CoreV1()
	// Timeout bounds one TokenRequest; 0 means 10 s.
	Timeout time.Duration
}

// Error says that there is no valid token for a pod.
type Error struct {
	Namespace, ServiceAccount string
	Pod                       string // name
	Audience                  string // empty: the API server's
	// Expired is set if there was a token, which expired before a refresh succeeded.
	Expired bool
	Err     error // the API's
}

func (e *Error) Error() string {
	audience := ""
	if e.Audience != "" {
		audience = fmt.Sprintf(" for audience %q", e.Audience)
	}
	if e.Expired {
		return fmt.Sprintf("token of service account %s/%s%s expired and refresh failed: %v", e.Namespace, e.ServiceAccount, audience, e.Err)
	}
	return fmt.Sprintf("failed to fetch token: service account %s/%s%s: %v", e.Namespace, e.ServiceAccount, audience, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

type key struct {
	namespace, account, pod string
	uid                     types.UID
	audience                string
	expiration              int64
	accountUID              types.UID // empty: any account of that name
}

// entry is one token. Its fields are read and written by the holder of sem.
type entry struct {
	sem     chan struct{} // capacity 1: one request in flight for each token
	token   string        // empty: none yet
	due     due           // when to refresh it
	expires time.Time     // by either clock
	failing bool          // the last refresh failed and was logged
}

// Manager keeps tokens. Its methods are safe for concurrent use.
type Manager struct {
	client  corev1client.ServiceAccountsGetter
	timeout time.Duration
	jitter  func() time.Duration // in [0, maxJitter)
	now     func() time.Time     // with both clocks
	updates chan types.UID
	wake    notify.Signal // dues changed

	mu      sync.Mutex
	entries map[key]*entry
	dues    map[key]due // when to send the token's pod on updates; removed once sent
}

// New returns a manager; it starts nothing.
func New(c Config) (*Manager, error) {
	if c.Client == nil {
		return nil, errors.New("tokens: Client is required")
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	return &Manager{
		client:  c.Client,
		timeout: c.Timeout,
		jitter:  func() time.Duration { return rand.N(maxJitter) },
		now:     time.Now,
		updates: make(chan types.UID),
		wake:    notify.New(),
		entries: map[key]*entry{},
		dues:    map[key]due{},
	}, nil
}

// Token returns a token of the pod's service account for an audience (empty: the API server) with a
// life in seconds (0: the API server chooses). While a refresh fails it returns the current token
// as long as that is valid. Errors are *Error.
func (m *Manager) Token(ctx context.Context, p *v1.Pod, audience string, expirationSeconds int64) (string, error) {
	account := p.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	return m.tokenOf(ctx, key{p.Namespace, account, p.Name, p.UID, audience, expirationSeconds, ""})
}

// AccountToken is Token for the pod's service account with this UID: the API server refuses a token
// for another account of the same name.
func (m *Manager) AccountToken(ctx context.Context, p *v1.Pod, uid types.UID, audience string) (string, error) {
	return m.tokenOf(ctx, key{p.Namespace, p.Spec.ServiceAccountName, p.Name, p.UID, audience, 0, uid})
}

func (m *Manager) tokenOf(ctx context.Context, k key) (string, error) {
	e := m.entry(k)
	select {
	case e.sem <- struct{}{}:
		defer func() { <-e.sem }()
	case <-ctx.Done():
		return "", k.error(false, ctx.Err())
	}
	now := m.now()
	if e.token != "" && !e.due.passed(now) {
		return e.token, nil
	}
	err := m.refresh(ctx, k, e, now)
	switch {
	case err == nil:
		m.schedule(k, e)
		return e.token, nil
	case e.token == "":
		return "", k.error(false, err)
	case wall.Passed(e.expires, m.now()):
		return "", k.error(true, err)
	}
	if !e.failing {
		e.failing = true
		klog.FromContext(ctx).Error(err, "Failed to refresh a service account token; the current one stays in use",
			"pod", klog.KRef(k.namespace, k.pod), "podUID", k.uid, "serviceAccount", k.account, "expires", e.expires.Round(0))
	}
	e.due = due{at: m.now().Add(retryAfter)}
	m.schedule(k, e)
	return e.token, nil
}

func (m *Manager) entry(k key) *entry {
	m.mu.Lock()
	defer m.mu.Unlock()
	e := m.entries[k]
	if e == nil {
		e = &entry{sem: make(chan struct{}, 1)}
		m.entries[k] = e
	}
	return e
}

// refresh requests a token. Expiry counts from our clocks at the time of the request, so that no
// skew to the API server's clock delays the next refresh.
func (m *Manager) refresh(ctx context.Context, k key, e *entry, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, m.timeout)
	defer cancel()
	request := &authenticationv1.TokenRequest{ObjectMeta: metav1.ObjectMeta{UID: k.accountUID}, Spec: authenticationv1.TokenRequestSpec{
		BoundObjectRef: &authenticationv1.BoundObjectReference{
			APIVersion: "v1", Kind: "Pod", Name: k.pod, UID: k.uid,
		},
	}}
	if k.audience != "" {
		request.Spec.Audiences = []string{k.audience}
	}
	if k.expiration != 0 {
		request.Spec.ExpirationSeconds = &k.expiration
	}
	answer, err := m.client.ServiceAccounts(k.namespace).CreateToken(ctx, k.account, request, metav1.CreateOptions{})
	retry := wait.Backoff{Duration: 20 * time.Millisecond, Factor: 2, Steps: 5}
	for err != nil && e.token == "" && lags(err, k) && retry.Steps > 0 {
		select {
		case <-time.After(retry.Step()):
		case <-ctx.Done():
			return err
		}
		answer, err = m.client.ServiceAccounts(k.namespace).CreateToken(ctx, k.account, request, metav1.CreateOptions{})
	}
	if err != nil {
		return err
	}
	if answer.Status.Token == "" {
		return errors.New("the API server answered without a token")
	}
	life := defaultLife
	switch {
	case answer.Spec.ExpirationSeconds != nil:
		life = time.Duration(*answer.Spec.ExpirationSeconds) * time.Second
	case k.expiration != 0:
		life = time.Duration(k.expiration) * time.Second
	}
	e.token, e.failing = answer.Status.Token, false
	e.expires = now.Add(life)
	left := min(life*4/5, maxAge) - m.jitter()
	e.due = due{at: now.Add(left)}
	if ends := answer.Status.ExpirationTimestamp.Time; !ends.IsZero() {
		e.due.server, e.due.rested = ends.Add(left-life).Round(0), now.Add(rest)
	}
	return nil
}

// lags reports whether the API server may show us the pod before its own admission and its node
// authorizer know it, or that it is bound to this node. The volume's back-off would delay the pod's
// start longer than refresh does.
func lags(err error, k key) bool {
	var status apierrors.APIStatus
	if apierrors.IsForbidden(err) {
		return true
	}
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	d := status.Status().Details
	return d != nil && d.Kind == "pods" && d.Name == k.pod
}

func (k key) error(expired bool, err error) *Error {
	return &Error{Namespace: k.namespace, ServiceAccount: k.account, Pod: k.pod, Audience: k.audience, Expired: expired, Err: err}
}

// Forget drops the pod's tokens.
func (m *Manager) Forget(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.entries {
		if k.uid == uid {
			delete(m.entries, k)
			delete(m.dues, k)
		}
	}
}
