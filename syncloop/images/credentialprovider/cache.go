package credentialprovider

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	credentialapi "k8s.io/kubelet/pkg/apis/credentialprovider"

	"github.com/bowline-k8s/bowline/wall"
)

// cacheKey is the scope of a cached answer: an image, a registry, or allImages.
type cacheKey struct{ what, scope string }

// allImages cannot be the name of an image.
const allImages = "<global>"

type cached struct {
	auth answer
	// expires is over by either clock: the credential itself expires while the machine sleeps, and a
	// clock that is set back does not prolong it.
	expires time.Time
}

// flightKey distinguishes runs that may answer differently.
type flightKey struct{ image, scope, token string }

// flight is one run that several calls wait for. It ends when the program has answered, or when no
// call waits for it any more.
type flight struct {
	waiters int // guarded by provider.mu
	cancel  context.CancelFunc
	done    chan struct{} // closed after auth and err are set
	auth    answer
	err     error
}

// get answers from the cache, from a run in flight, or from a new run.
func (p *provider) get(ctx context.Context, q question) (answer, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	key := flightKey{q.image, q.scope, hash(q.token)}
	p.mu.Lock()
	if auth, ok := p.cachedAnswer(q, time.Now()); ok {
		p.mu.Unlock()
		return auth, nil
	}
	f := p.flights[key]
	if f == nil {
		// The first caller may leave before the others.
		runCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		f = &flight{cancel: cancel, done: make(chan struct{})}
		p.flights[key] = f
		go p.fly(runCtx, key, f, q)
	}
	f.waiters++
	p.mu.Unlock()

	select {
	case <-f.done:
		p.leave(key, f)
		return f.auth, f.err
	case <-ctx.Done():
		if p.leave(key, f) {
			<-f.done // the last waiter waits for the program to end
		}
		return nil, ctx.Err()
	}
}

// leave removes one waiter and, after the last one, ends the run. It reports whether this was the
// last.
func (p *provider) leave(key flightKey, f *flight) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	f.waiters--
	if f.waiters > 0 {
		return false
	}
	if p.flights[key] == f {
		delete(p.flights, key)
	}
	f.cancel()
	return true
}

func (p *provider) fly(ctx context.Context, key flightKey, f *flight, q question) {
	defer close(f.done)
	response, err := p.inTurn(ctx, q)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.flights[key] == f {
		delete(p.flights, key)
	}
	if err != nil {
		f.err = err
		return
	}
	f.auth, f.err = p.take(q, response, time.Now())
}

// inTurn runs the program when few others run.
func (p *provider) inTurn(ctx context.Context, q question) (*credentialapi.CredentialProviderResponse, error) {
	for _, places := range []chan struct{}{p.share, running} {
		select {
		case places <- struct{}{}:
			defer func() { <-places }()
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	began := time.Now()
	response, err := p.run(ctx, q)
	if !errors.Is(err, context.Canceled) { // no caller waits for it any more
		p.ran(p.Config.Name, time.Since(began), err)
	}
	return response, err
}

// take caches an answer for as long as it says. The caller holds mu.
func (p *provider) take(q question, r *credentialapi.CredentialProviderResponse, now time.Time) (answer, error) {
	if q.token != "" && !q.mayEcho {
		for _, a := range r.Auth {
			if a.Password == q.token {
				return nil, errors.New("it answered with the service account's token as the password, which only cacheType Token allows")
			}
		}
	}
	key := cacheKey{scope: q.scope}
	switch r.CacheKeyType {
	case credentialapi.ImagePluginCacheKeyType:
		key.what = q.image
	case credentialapi.RegistryPluginCacheKeyType:
		key.what = registry(q.image)
	case credentialapi.GlobalPluginCacheKeyType:
		key.what = allImages
	default:
		return nil, errors.New("its answer has no cacheKeyType Image, Registry or Global")
	}
	keep := p.Config.DefaultCacheDuration.Duration
	if r.CacheDuration != nil {
		keep = r.CacheDuration.Duration
	}
	maps.DeleteFunc(p.cache, func(_ cacheKey, c cached) bool { return wall.Passed(c.expires, now) })
	if keep > 0 {
		p.cache[key] = cached{auth: r.Auth, expires: now.Add(keep)}
	}
	return r.Auth, nil
}

// cachedAnswer returns the most specific answer that is still valid. The caller holds mu.
func (p *provider) cachedAnswer(q question, now time.Time) (answer, bool) {
	for _, what := range []string{q.image, registry(q.image), allImages} {
		if c, ok := p.cache[cacheKey{what, q.scope}]; ok && !wall.Passed(c.expires, now) {
			return c.auth, true
		}
	}
	return nil, false
}

func registry(image string) string {
	domain, _, _ := strings.Cut(image, "/")
	return domain
}

// scope prefixes each part with its length, so that no two accounts have the same scope.
func scope(namespace, name string, uid types.UID, annotations map[string]string) string {
	var b strings.Builder
	write := func(s string) { fmt.Fprintf(&b, "%d:%s ", len(s), s) }
	write(namespace)
	write(name)
	write(string(uid))
	for _, k := range slices.Sorted(maps.Keys(annotations)) {
		write(k)
		write(annotations[k])
	}
	return b.String()
}

// hash is the hash of a token; empty for none.
func hash(token string) string {
	if token == "" {
		return ""
	}
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}
