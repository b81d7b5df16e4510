package tokens

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// issuer answers TokenRequests with "token-<n>".
type issuer struct {
	corev1client.ServiceAccountInterface
	mu       sync.Mutex
	requests []*authenticationv1.TokenRequest
	accounts []string
	err      error
	delay    time.Duration
	now      func() time.Time // the API server's clock; nil: ours
}

func (i *issuer) ServiceAccounts(namespace string) corev1client.ServiceAccountInterface {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.accounts = append(i.accounts, namespace)
	return i
}

func (i *issuer) CreateToken(ctx context.Context, name string, r *authenticationv1.TokenRequest, _ metav1.CreateOptions) (*authenticationv1.TokenRequest, error) {
	if i.delay > 0 {
		select {
		case <-time.After(i.delay):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.requests = append(i.requests, r)
	i.accounts[len(i.accounts)-1] += "/" + name
	if i.err != nil {
		return nil, i.err
	}
	answer := r.DeepCopy()
	if answer.Spec.ExpirationSeconds == nil {
		hour := int64(3600)
		answer.Spec.ExpirationSeconds = &hour
	}
	answer.Status.Token = "token-" + strconv.Itoa(len(i.requests))
	now := time.Now
	if i.now != nil {
		now = i.now
	}
	answer.Status.ExpirationTimestamp = metav1.NewTime(now().Add(time.Duration(*answer.Spec.ExpirationSeconds) * time.Second))
	return answer, nil
}

func (i *issuer) count() int {
	i.mu.Lock()
	defer i.mu.Unlock()
	return len(i.requests)
}

func (i *issuer) fail(err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.err = err
}

func manager(t *testing.T, i *issuer) *Manager {
	t.Helper()
	m, err := New(Config{Client: i})
	testutil.Must(t, err)
	m.jitter = func() time.Duration { return 0 }
	return m
}

func testPod(uid types.UID) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: uid},
		Spec:       v1.PodSpec{ServiceAccountName: "robot"},
	}
}

func mustToken(t *testing.T, m *Manager, p *v1.Pod, audience string, seconds int64, want string) {
	t.Helper()
	got, err := m.Token(t.Context(), p, audience, seconds)
	testutil.Must(t, err)
	if got != want {
		t.Fatalf("token = %s, want %s", got, want)
	}
}

func TestRequestIsBoundToThePod(t *testing.T) {
	i := &issuer{}
	m := manager(t, i)
	mustToken(t, m, testPod("u1"), "vault", 600, "token-1")
	r := i.requests[0]
	if ref := r.Spec.BoundObjectRef; ref == nil || ref.Kind != "Pod" || ref.APIVersion != "v1" || ref.Name != "p" || ref.UID != "u1" {
		t.Errorf("bound to %+v", ref)
	}
	if len(r.Spec.Audiences) != 1 || r.Spec.Audiences[0] != "vault" || *r.Spec.ExpirationSeconds != 600 {
		t.Errorf("spec = %+v", r.Spec)
	}
	if i.accounts[0] != "ns/robot" {
		t.Errorf("account = %s", i.accounts[0])
	}
	// A pod from a file may name no account; audience and life are then the API server's defaults.
	p := testPod("u2")
	p.Spec.ServiceAccountName = ""
	mustToken(t, m, p, "", 0, "token-2")
	if i.accounts[1] != "ns/default" || i.requests[1].Spec.Audiences != nil || i.requests[1].Spec.ExpirationSeconds != nil {
		t.Errorf("account %s, spec %+v", i.accounts[1], i.requests[1].Spec)
	}
}

func TestRefreshAt80PercentOrADay(t *testing.T) {
	for name, c := range map[string]struct {
		seconds     int64
		kept, fresh time.Duration
	}{
		"80 % of an hour":                {3600, 48*time.Minute - time.Second, 48 * time.Minute},
		"80 % of ten minutes":            {600, 8*time.Minute - time.Second, 8 * time.Minute},
		"a day where the life is longer": {7 * 24 * 3600, 24*time.Hour - time.Second, 24 * time.Hour},
		"the server's hour":              {0, 48*time.Minute - time.Second, 48 * time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := manager(t, &issuer{})
				p := testPod("u")
				mustToken(t, m, p, "", c.seconds, "token-1")
				time.Sleep(c.kept)
				mustToken(t, m, p, "", c.seconds, "token-1")
				time.Sleep(c.fresh - c.kept)
				mustToken(t, m, p, "", c.seconds, "token-2")
			})
		})
	}
}

func TestJitterOnlyHastens(t *testing.T) {
	m, err := New(Config{Client: &issuer{}})
	testutil.Must(t, err)
	for range 1000 {
		if j := m.jitter(); j < 0 || j >= maxJitter {
			t.Fatalf("jitter %v", j)
		}
	}
}

func TestFailedRefreshServesTheOldUntilItExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{}
		m := manager(t, i)
		p := testPod("u")
		mustToken(t, m, p, "", 600, "token-1")
		i.fail(errors.New("away"))
		time.Sleep(8 * time.Minute)
		for range 5 {
			mustToken(t, m, p, "", 600, "token-1")
		}
		if n := i.count(); n != 2 {
			t.Errorf("%d requests: a failed refresh is not tried at every call", n)
		}
		time.Sleep(2 * time.Minute)
		_, err := m.Token(t.Context(), p, "", 600)
		var e *Error
		if !errors.As(err, &e) || !e.Expired || e.ServiceAccount != "robot" {
			t.Fatalf("err = %v", err)
		}
		if strings.Contains(err.Error(), "token-1") {
			t.Error("the token is in the error")
		}
		i.fail(nil)
		mustToken(t, m, p, "", 600, "token-"+strconv.Itoa(i.count()+1))
	})
}

func TestFirstFetchFails(t *testing.T) {
	i := &issuer{err: apierrors.NewNotFound(v1.Resource("serviceaccounts"), "robot")}
	_, err := manager(t, i).Token(t.Context(), testPod("u"), "", 0)
	var e *Error
	if !errors.As(err, &e) || e.Expired || !apierrors.IsNotFound(err) {
		t.Fatalf("err = %#v", err)
	}
	if !strings.HasPrefix(err.Error(), "failed to fetch token: ") {
		t.Errorf("message = %q", err)
	}
}

// TestAPodThatTheServerKnowsLate: the API server's admission or node authorizer may lag behind the
// watch that showed us the pod.
func TestAPodThatTheServerKnowsLate(t *testing.T) {
	for name, late := range map[string]error{
		"admission":  apierrors.NewNotFound(v1.Resource("pods"), "p"),
		"authorizer": apierrors.NewForbidden(v1.Resource("serviceaccounts"), "robot", errors.New("no relationship found")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				i := &issuer{err: late}
				m := manager(t, i)
				time.AfterFunc(100*time.Millisecond, func() { i.fail(nil) })
				began := time.Now()
				if _, err := m.Token(t.Context(), testPod("u"), "", 0); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(began); took > 200*time.Millisecond {
					t.Errorf("took %s", took)
				}
				i.fail(late)
				if _, err := m.Token(t.Context(), testPod("v"), "", 0); err == nil {
					t.Error("a pod that stays unknown got a token")
				}
			})
		})
	}
}

func TestSilentServerHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manager(t, &issuer{delay: time.Hour})
		began := time.Now()
		if _, err := m.Token(t.Context(), testPod("u"), "", 0); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("err = %v", err)
		}
		if d := time.Since(began); d != defaultTimeout {
			t.Errorf("gave up after %v", d)
		}
	})
}

func TestOneRequestForManyCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		i := &issuer{delay: time.Second}
		m := manager(t, i)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() { mustToken(t, m, testPod("u"), "", 0, "token-1") })
		}
		wg.Wait()
		if i.count() != 1 {
			t.Errorf("%d requests", i.count())
		}
	})
}

func TestKeysAreApart(t *testing.T) {
	i := &issuer{}
	m := manager(t, i)
	mustToken(t, m, testPod("u"), "", 0, "token-1")
	mustToken(t, m, testPod("u"), "a", 0, "token-2")
	mustToken(t, m, testPod("u"), "a", 700, "token-3")
	mustToken(t, m, testPod("v"), "", 0, "token-4")
	mustToken(t, m, testPod("u"), "", 0, "token-1")
	m.Forget("u")
	mustToken(t, m, testPod("v"), "", 0, "token-4")
	mustToken(t, m, testPod("u"), "", 0, "token-5")
	if n := len(m.entries); n != 2 {
		t.Errorf("%d entries after Forget", n)
	}
}

func TestUpdatesWhenDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := manager(t, &issuer{})
		stop := testutil.Go(t.Context(), m.Run)
		p := testPod("u")
		mustToken(t, m, p, "long", 3600, "token-1")
		mustToken(t, m, p, "short", 600, "token-2")
		mustToken(t, m, testPod("gone"), "", 600, "token-3")
		m.Forget("gone")
		began := time.Now()
		if uid := <-m.Updates(); uid != "u" || time.Since(began) != 8*time.Minute {
			t.Fatalf("woke %s after %v", uid, time.Since(began))
		}
		mustToken(t, m, p, "long", 3600, "token-1")
		mustToken(t, m, p, "short", 600, "token-4")
		if uid := <-m.Updates(); uid != "u" || time.Since(began) != 16*time.Minute {
			t.Fatalf("woke %s after %v", uid, time.Since(began))
		}
		testutil.Must(t, stop())
	})
}

func TestATokenOfTheAccountAsItIs(t *testing.T) {
	i := &issuer{}
	m := manager(t, i)
	for n, uid := range []types.UID{"a1", "a1", "a2"} {
		got, err := m.AccountToken(t.Context(), testPod("u1"), uid, "registry")
		if want := []string{"token-1", "token-1", "token-2"}[n]; err != nil || got != want {
			t.Fatalf("%s: %s, %v; want %s", uid, got, err, want)
		}
	}
	r := i.requests[1]
	if r.UID != "a2" || r.Spec.BoundObjectRef.UID != "u1" || r.Spec.Audiences[0] != "registry" || i.accounts[1] != "ns/robot" {
		t.Errorf("asked %+v of %s", r, i.accounts[1])
	}
}
