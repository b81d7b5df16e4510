package credentialprovider

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	kubeletconfig "k8s.io/kubelet/config/v1"
	credentialapi "k8s.io/kubelet/pkg/apis/credentialprovider"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/syncloop/tokens"
	"github.com/bowline-k8s/bowline/wall/walltest"
)

// cluster fakes service accounts and their tokens.
type cluster struct {
	mu       sync.Mutex
	accounts map[string]*v1.ServiceAccount // by namespace/name
	age      int                           // of tokens
	err      error
	forbids  int // number of requests to forbid from now on
	asked    []string
	counted  []string // runs of programs
}

func (c *cluster) forbidden() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.forbids == 0 {
		return nil
	}
	c.forbids--
	return apierrors.NewForbidden(v1.Resource("serviceaccounts"), "robot", errors.New("no relationship found"))
}

func (c *cluster) ServiceAccount(_ context.Context, namespace, name string) (*v1.ServiceAccount, error) {
	if err := c.forbidden(); err != nil {
		return nil, err
	}
	if a := c.accounts[namespace+"/"+name]; a != nil {
		return a, nil
	}
	return nil, errors.New("no such account")
}

func (c *cluster) AccountToken(_ context.Context, p *v1.Pod, uid types.UID, audience string) (string, error) {
	if err := c.forbidden(); err != nil {
		return "", &tokens.Error{Namespace: p.Namespace, Pod: p.Name, Err: err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, fmt.Sprintf("%s %s %s", p.Name, uid, audience))
	return fmt.Sprintf("token-%s-%s-%d", p.Name, uid, c.age), c.err
}

// ran counts the runs of programs.
func (c *cluster) ran(name string, took time.Duration, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counted = append(c.counted, fmt.Sprint(name, " ", took, " ", err))
}

// script fakes a program.
type script struct {
	mu       sync.Mutex
	runs     []question
	took     time.Duration
	response credentialapi.CredentialProviderResponse
	err      error
	ended    int // cancelled runs
}

func (s *script) run(ctx context.Context, q question) (*credentialapi.CredentialProviderResponse, error) {
	s.mu.Lock()
	s.runs = append(s.runs, q)
	n := len(s.runs)
	s.mu.Unlock()
	select {
	case <-time.After(s.took):
	case <-ctx.Done():
		s.mu.Lock()
		s.ended++
		s.mu.Unlock()
		return nil, ctx.Err()
	}
	out := s.response
	if out.Auth == nil {
		out.Auth = map[string]credentialapi.AuthConfig{"r.example": {Username: fmt.Sprintf("run-%d", n)}}
	}
	return &out, s.err
}

func (s *script) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.runs)
}

func set(t *testing.T, c *cluster, all map[*script]kubeletconfig.CredentialProvider, order ...*script) *Set {
	t.Helper()
	var programs []Program
	for _, s := range order {
		config := all[s]
		if config.MatchImages == nil {
			config.MatchImages = []string{"r.example", "*.r.example", "docker.io"}
		}
		if config.DefaultCacheDuration == nil {
			config.DefaultCacheDuration = &metav1.Duration{Duration: time.Minute}
		}
		programs = append(programs, Program{Config: config})
	}
	out, err := New(programs, c, c, c.ran)
	testutil.Must(t, err)
	for i, s := range order {
		out.providers[i].run = s.run
	}
	return out
}

func podOf(name, account string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-" + name)}, Spec: v1.PodSpec{ServiceAccountName: account}}
}

// users returns the users to try, in order, each with its account.
func users(t *testing.T, s *Set, p *v1.Pod, repository string) string {
	t.Helper()
	var out []string
	for _, c := range s.Credentials(t.Context(), p, repository) {
		u := c.Auth.Username
		if c.Account != nil {
			u += "@" + c.Account.Namespace + "/" + c.Account.Name + "/" + string(c.Account.UID)
		}
		out = append(out, u)
	}
	return strings.Join(out, " ")
}

// Which images an answer is cached for, and for how long.
func TestCache(t *testing.T) {
	for name, c := range map[string]struct {
		keyType  credentialapi.PluginCacheKeyType
		duration *metav1.Duration
		fallback time.Duration
		// runs after two requests for each image, and after two more when a minute has passed
		once, later int
	}{
		"image":           {"Image", nil, time.Minute, 3, 6},
		"registry":        {"Registry", nil, time.Minute, 2, 4},
		"global":          {"Global", nil, time.Minute, 1, 2},
		"its own":         {"Global", &metav1.Duration{Duration: time.Hour}, time.Minute, 1, 1},
		"not at all":      {"Global", &metav1.Duration{}, time.Minute, 6, 12},
		"in the past":     {"Global", &metav1.Duration{Duration: -time.Second}, time.Minute, 6, 12},
		"none by default": {"Global", nil, 0, 6, 12},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &script{response: credentialapi.CredentialProviderResponse{CacheKeyType: c.keyType, CacheDuration: c.duration,
					Auth: map[string]credentialapi.AuthConfig{"r.example": {Username: "u"}, "*.r.example": {Username: "u"}}}}
				all := set(t, &cluster{}, map[*script]kubeletconfig.CredentialProvider{s: {DefaultCacheDuration: &metav1.Duration{Duration: c.fallback}}}, s)
				ask := func(want int) {
					t.Helper()
					for range 2 {
						for _, image := range []string{"r.example/a", "r.example/b", "x.r.example/a"} {
							if got := users(t, all, podOf("p", ""), image); got != "u" {
								t.Errorf("%s: %q", image, got)
							}
						}
					}
					if s.count() != want {
						t.Errorf("%d runs, want %d", s.count(), want)
					}
				}
				ask(c.once)
				time.Sleep(time.Minute + time.Second)
				ask(c.later)
				if n := len(all.providers[0].cache); n > 3 {
					t.Errorf("%d answers are kept", n)
				}
			})
		})
	}
}

func TestBadAnswersAreNotKept(t *testing.T) {
	s := &script{response: credentialapi.CredentialProviderResponse{CacheKeyType: "Pod"}}
	all := set(t, &cluster{}, map[*script]kubeletconfig.CredentialProvider{s: {}}, s)
	for want := 1; want <= 2; want++ {
		if got := users(t, all, podOf("p", ""), "r.example/a"); got != "" || s.count() != want {
			t.Errorf("users %q after %d runs", got, s.count())
		}
	}
	s.response.CacheKeyType, s.err = "Image", errors.New("no")
	if got := users(t, all, podOf("p", ""), "r.example/a"); got != "" {
		t.Errorf("a failure gave %q", got)
	}
}

// Every provider that fits an image is run. The more specific registry comes first, then the
// earlier provider.
func TestOrder(t *testing.T) {
	auth := func(pairs ...string) *script {
		a := map[string]credentialapi.AuthConfig{}
		for i := 0; i < len(pairs); i += 2 {
			a[pairs[i]] = credentialapi.AuthConfig{Username: pairs[i+1]}
		}
		return &script{response: credentialapi.CredentialProviderResponse{CacheKeyType: "Image", Auth: a}}
	}
	one, two, other := auth("r.example", "one", "r.example/team", "one-team", "s.example", "no"), auth("r.example", "two", "r.example/team", "two-team"), auth("r.example", "other")
	all := set(t, &cluster{}, map[*script]kubeletconfig.CredentialProvider{one: {}, two: {}, other: {MatchImages: []string{"*.other", "r.example:5000", "r.example/other", "a.b.example"}}}, one, other, two)
	if got := users(t, all, podOf("p", ""), "r.example/team/app"); got != "one-team two-team one two" {
		t.Errorf("tried in the order %s", got)
	}
	if got := users(t, all, podOf("p", ""), "elsewhere/app"); got != "" || one.count() != 1 || other.count() != 0 {
		t.Errorf("%q; the programs ran %d and %d times", got, one.count(), other.count())
	}
}

func TestOneRunForAllThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &script{took: 10 * time.Second, response: credentialapi.CredentialProviderResponse{CacheKeyType: "Image", CacheDuration: &metav1.Duration{}}}
		c := &cluster{}
		all := set(t, c, map[*script]kubeletconfig.CredentialProvider{s: {Name: "acr"}}, s)
		defer func() {
			if want := []string{"acr 10s <nil>", "acr 10s <nil>", "acr 1m0s " + context.DeadlineExceeded.Error()}; !slices.Equal(c.counted, want) {
				t.Errorf("counted %q, want %q", c.counted, want)
			}
		}()
		got := make([]string, 5)
		var wait sync.WaitGroup
		first, leave := context.WithCancel(t.Context())
		wait.Go(func() { all.Credentials(first, podOf("p", ""), "r.example/a") })
		synctest.Wait()
		for i := range got {
			wait.Go(func() { got[i] = users(t, all, podOf(fmt.Sprint("p", i), ""), "r.example/a") })
		}
		synctest.Wait()
		leave() // the first caller does not end it for the others
		wait.Wait()
		if s.count() != 1 || s.ended != 0 {
			t.Errorf("%d runs, %d given up; want one for all", s.count(), s.ended)
		}
		for _, u := range got {
			if u != "run-1" {
				t.Errorf("got %q", u)
			}
		}
		// After the last caller has left, the run is ended, and the next call starts a new one.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if out := all.Credentials(ctx, podOf("p", ""), "r.example/a"); out != nil || s.ended != 1 {
			t.Errorf("a call that was given up gave %v; %d runs were ended", out, s.ended)
		}
		if u := users(t, all, podOf("p", ""), "r.example/a"); u != "run-3" {
			t.Errorf("the next one got %q", u)
		}
		// A program has one minute.
		s.took = 2 * time.Minute
		began := time.Now()
		if u := users(t, all, podOf("p", ""), "r.example/a"); u != "" || time.Since(began) != time.Minute {
			t.Errorf("%q after %v", u, time.Since(began))
		}
	})
}

func TestTokens(t *testing.T) {
	yes, no := true, false
	attributes := func(cache kubeletconfig.ServiceAccountTokenCacheType, require *bool) *kubeletconfig.ServiceAccountTokenAttributes {
		return &kubeletconfig.ServiceAccountTokenAttributes{ServiceAccountTokenAudience: "registry", CacheType: cache, RequireServiceAccount: require}
	}
	world := func() *cluster {
		return &cluster{accounts: map[string]*v1.ServiceAccount{
			"shop/robot": {ObjectMeta: metav1.ObjectMeta{UID: "r1", Annotations: map[string]string{"role": "reader", "team": "a", "other": "x"}}},
			"shop/plain": {ObjectMeta: metav1.ObjectMeta{UID: "p1"}},
		}}
	}
	start := func(t *testing.T, a *kubeletconfig.ServiceAccountTokenAttributes) (*cluster, *script, *Set) {
		c, s := world(), &script{response: credentialapi.CredentialProviderResponse{CacheKeyType: "Registry"}}
		return c, s, set(t, c, map[*script]kubeletconfig.CredentialProvider{s: {TokenAttributes: a}}, s)
	}
	t.Run("by account", func(t *testing.T) {
		c, s, all := start(t, attributes(kubeletconfig.ServiceAccountServiceAccountTokenCacheType, &yes))
		for _, q := range []struct{ pod, account, image, want string }{
			{"one", "robot", "r.example/a", "run-1@shop/robot/r1"},
			{"two", "robot", "r.example/b", "run-1@shop/robot/r1"}, // another pod of the account, another image of the registry
			{"one", "plain", "r.example/a", "run-2@shop/plain/p1"},
			{"one", "", "r.example/a", ""},
			{"one", "gone", "r.example/a", ""},
		} {
			if got := users(t, all, podOf(q.pod, q.account), q.image); got != q.want {
				t.Errorf("%+v: got %q", q, got)
			}
		}
		if diff := cmp.Diff([]string{"one r1 registry", "two r1 registry", "one p1 registry"}, c.asked); diff != "" {
			t.Error(diff)
		}
		if s.runs[0].token != "token-one-r1-0" {
			t.Errorf("the program was given %q", s.runs[0].token)
		}
		// The account was deleted and created again: the new one must not get the old one's cached
		// answer.
		c.accounts["shop/robot"].UID = "r2"
		if got := users(t, all, podOf("one", "robot"), "r.example/a"); got != "run-3@shop/robot/r2" {
			t.Errorf("a new account got %q", got)
		}
		c.err = errors.New("forbidden")
		if got := users(t, all, podOf("one", "robot"), "r.example/a"); got != "" {
			t.Errorf("without a token: %q", got)
		}
	})
	t.Run("by token", func(t *testing.T) {
		c, _, all := start(t, attributes(kubeletconfig.TokenServiceAccountTokenCacheType, &yes))
		for i, want := range []string{"run-1", "run-1", "run-2", "run-3"} {
			pod := "one"
			if i == 2 {
				pod = "two"
			}
			if i == 3 {
				c.age = 1 // the token was renewed
			}
			if got := users(t, all, podOf(pod, "robot"), "r.example/a"); got != want+"@shop/robot/r1" {
				t.Errorf("%d: %q, want %s", i, got, want)
			}
		}
	})
	t.Run("without an account", func(t *testing.T) {
		c, s, all := start(t, attributes(kubeletconfig.TokenServiceAccountTokenCacheType, &no))
		if got := users(t, all, podOf("static", ""), "r.example/a"); got != "run-1" || s.runs[0].token != "" || c.asked != nil {
			t.Errorf("got %q by %+v", got, s.runs)
		}
	})
	t.Run("forbidden", func(t *testing.T) {
		for forbids, want := range map[int]string{1: "run-1@shop/robot/r1", 5: "run-1@shop/robot/r1", 100: ""} {
			synctest.Test(t, func(t *testing.T) {
				c, _, all := start(t, attributes(kubeletconfig.ServiceAccountServiceAccountTokenCacheType, &yes))
				c.forbids = forbids
				began := time.Now()
				if got := users(t, all, podOf("one", "robot"), "r.example/a"); got != want {
					t.Errorf("forbidden %d times: %q, want %q", forbids, got, want)
				}
				if took := time.Since(began); took > 4*time.Second {
					t.Errorf("forbidden %d times: after %v", forbids, took)
				}
			})
		}
	})
	t.Run("annotations", func(t *testing.T) {
		a := attributes(kubeletconfig.ServiceAccountServiceAccountTokenCacheType, &yes)
		a.RequiredServiceAccountAnnotationKeys, a.OptionalServiceAccountAnnotationKeys = []string{"role"}, []string{"team", "none"}
		c, s, all := start(t, a)
		if got := users(t, all, podOf("one", "plain"), "r.example/a"); got != "" || s.count() != 0 || c.asked != nil {
			t.Errorf("an account without the annotation got %q", got)
		}
		if got := users(t, all, podOf("one", "robot"), "r.example/a"); got != "run-1@shop/robot/r1" {
			t.Errorf("got %q", got)
		}
		if diff := cmp.Diff(map[string]string{"role": "reader", "team": "a"}, s.runs[0].annotations); diff != "" {
			t.Error(diff)
		}
		c.accounts["shop/robot"].Annotations["team"] = "b"
		if got := users(t, all, podOf("one", "robot"), "r.example/a"); got != "run-2@shop/robot/r1" {
			t.Errorf("with another annotation: %q", got)
		}
	})
	t.Run("the token as the password", func(t *testing.T) {
		for cache, want := range map[kubeletconfig.ServiceAccountTokenCacheType]string{
			kubeletconfig.TokenServiceAccountTokenCacheType: "t@shop/robot/r1", kubeletconfig.ServiceAccountServiceAccountTokenCacheType: "",
		} {
			_, s, all := start(t, attributes(cache, &yes))
			s.response.Auth = map[string]credentialapi.AuthConfig{"r.example": {Username: "t", Password: "token-one-r1-0"}}
			if got := users(t, all, podOf("one", "robot"), "r.example/a"); got != want {
				t.Errorf("%s: %q, want %q", cache, got, want)
			}
		}
	})
}

func TestScopesDiffer(t *testing.T) {
	seen := map[string]int{}
	for i, s := range []string{
		scope("a", "bc", "u", nil), scope("ab", "c", "u", nil), scope("a", "bc", "u1", nil),
		scope("a", "bc", "u", map[string]string{"k": "v"}), scope("a", "bc", "u", map[string]string{"k": "v1:x"}), scope("a", "bc", "u", map[string]string{"k": "v", "x": ""}),
		scope("a", "bc", "u", map[string]string{"kv": ""}), "",
	} {
		if j, ok := seen[s]; ok {
			t.Errorf("%d and %d have the scope %q", i, j, s)
		}
		seen[s] = i
	}
}

// A cached answer expires while the machine sleeps, as its credential does, and not later if the
// clock is set back.
func TestAnAnswerEndsByEitherClock(t *testing.T) {
	p := &provider{Program: Program{Config: kubeletconfig.CredentialProvider{DefaultCacheDuration: &metav1.Duration{}}}, cache: map[cacheKey]cached{}}
	q, now := question{image: "r.example/a"}, time.Now()
	if _, err := p.take(q, &credentialapi.CredentialProviderResponse{CacheKeyType: "Image", CacheDuration: &metav1.Duration{Duration: time.Hour}}, now); err != nil {
		t.Fatal(err)
	}
	if _, ok := p.cachedAnswer(q, now.Add(time.Minute)); !ok {
		t.Error("it is not kept")
	}
	for what, at := range map[string]time.Time{
		"while the machine slept":        walltest.Slept(now, 2*time.Hour),
		"as the clock has been set back": walltest.Slept(now.Add(time.Hour), -2*time.Hour),
	} {
		if _, ok := p.cachedAnswer(q, at); ok {
			t.Errorf("it is kept beyond its time, %s", what)
		}
	}
}

// TestFewRunsAtATime: a pod with images of many repositories starts few programs at once, and the
// minute of each begins with its run. Another node's programs run meanwhile.
func TestFewRunsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{}
		s := &script{response: credentialapi.CredentialProviderResponse{CacheKeyType: "Image"}}
		one, two := set(t, c, map[*script]kubeletconfig.CredentialProvider{s: {}}, s), set(t, c, map[*script]kubeletconfig.CredentialProvider{s: {}}, s)
		var now, most, ran atomic.Int32
		one.providers[0].run = func(ctx context.Context, q question) (*credentialapi.CredentialProviderResponse, error) {
			defer now.Add(-1)
			if n := now.Add(1); n > most.Load() {
				most.Store(n)
			}
			time.Sleep(50 * time.Second)
			if ctx.Err() == nil {
				ran.Add(1)
			}
			return nil, errors.New("no credential")
		}
		var all sync.WaitGroup
		for i := range 20 {
			all.Go(func() { one.Credentials(t.Context(), podOf("web", ""), fmt.Sprint("r.example/", i)) })
		}
		synctest.Wait()
		if got := users(t, two, podOf("web", ""), "r.example/a"); got == "" {
			t.Error("another node has no credential")
		}
		all.Wait()
		if most.Load() != runsOfNode || ran.Load() != 20 {
			t.Errorf("%d ran at a time, and %d within their time", most.Load(), ran.Load())
		}
	})
}
