package api

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	authorizationclient "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

// accessReview authorizes by a SubjectAccessReview of the API server.
type accessReview struct {
	client authorizationclient.SubjectAccessReviewInterface
	allow  time.Duration             // how long an allowed request is cached
	deny   time.Duration             // how long any other decision is cached
	cache  *utilcache.LRUExpireCache // by the review's spec as JSON
}

// Authorization configures how requests are authorized, and how long decisions are cached.
type Authorization struct {
	// Reviews asks the API server; nil: every authenticated caller may do everything.
	Reviews authorizationclient.SubjectAccessReviewInterface
	// AllowTTL caches allowed requests, default 5 min; DenyTTL caches others, default 30 s.
	AllowTTL, DenyTTL time.Duration
}

// NewAuthorizer makes the authorizer that a configures.
func NewAuthorizer(a Authorization) authorizer.UnconditionalAuthorizer {
	if a.Reviews == nil {
		return alwaysAllow{}
	}
	return &accessReview{client: a.Reviews, allow: cmp.Or(a.AllowTTL, allowTTL), deny: cmp.Or(a.DenyTTL, denyTTL),
		cache: utilcache.NewLRUExpireCache(cacheEntries)}
}

// alwaysAllow is the kubelet's authorization mode AlwaysAllow.
type alwaysAllow struct{}

func (alwaysAllow) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

func (a *accessReview) Authorize(ctx context.Context, at authorizer.Attributes) (authorizer.Decision, string, error) {
	u := at.GetUser()
	spec := authorizationv1.SubjectAccessReviewSpec{
		User:   u.GetName(),
		UID:    u.GetUID(),
		Groups: u.GetGroups(),
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb:        at.GetVerb(),
			Version:     at.GetAPIVersion(),
			Resource:    at.GetResource(),
			Subresource: at.GetSubresource(),
			Name:        at.GetName(),
		},
	}
	for k, v := range u.GetExtra() {
		if spec.Extra == nil {
			spec.Extra = map[string]authorizationv1.ExtraValue{}
		}
		spec.Extra[k] = v
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("access review: %w", err)
	}
	key := string(data)
	if hit, ok := a.cache.Get(key); ok {
		return hit.(authorizer.Decision), "", nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewTimeout)
	defer cancel()
	r, err := a.client.Create(ctx, &authorizationv1.SubjectAccessReview{Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		return authorizer.DecisionNoOpinion, "", fmt.Errorf("ask the API server about %s: %w", u.GetName(), err)
	}
	decision, ttl := authorizer.DecisionNoOpinion, a.deny
	if r.Status.Denied {
		decision = authorizer.DecisionDeny
	} else if r.Status.Allowed {
		decision, ttl = authorizer.DecisionAllow, a.allow
	}
	a.cache.Add(key, decision, ttl)
	return decision, r.Status.Reason, nil
}
