package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// registry is a fake runtime: images appear by pulls, which take time.
type registry struct {
	mu      sync.Mutex
	present map[string]bool
	took    time.Duration                                         // of each pull
	pullErr func(image string, auth *runtimeapi.AuthConfig) error // nil: success
	// early is asked when a pull begins; nil: success.
	early func(image string, auth *runtimeapi.AuthConfig) error
	// drop ends the pulls that run, with dropErr.
	drop    <-chan struct{}
	dropErr error
	statErr error
	ids     map[string]string // of images; "id-of-" and the name for others
	calls   []string
	running int
	most    int // most pulls at once
}

func (r *registry) ImageStatus(_ context.Context, s *runtimeapi.ImageSpec) (*runtimeapi.Image, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, "status "+s.Image)
	if r.statErr != nil {
		return nil, r.statErr
	}
	if !r.present[s.Image] {
		return nil, nil
	}
	return &runtimeapi.Image{Id: cmp.Or(r.ids[s.Image], "id-of-"+s.Image), Size: 42}, nil
}

// set changes the runtime under its lock.
func (r *registry) set(change func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	change()
}

func (r *registry) PullImage(ctx context.Context, s *runtimeapi.ImageSpec, auth *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	r.mu.Lock()
	r.calls = append(r.calls, "pull "+s.Image+" as "+auth.GetUsername())
	r.running++
	r.most = max(r.most, r.running)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.running--
		r.mu.Unlock()
	}()
	if r.early != nil {
		if err := r.early(s.Image, auth); err != nil {
			return "", err
		}
	}
	select {
	case <-time.After(r.took):
	case <-ctx.Done():
		return "", ctx.Err()
	case <-r.drop:
		return "", r.dropErr
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pullErr != nil {
		if err := r.pullErr(s.Image, auth); err != nil {
			return "", err
		}
	}
	r.present[s.Image] = true
	return "ref-of-" + s.Image, nil
}

func (r *registry) pulls() (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.calls {
		if strings.HasPrefix(c, "pull ") {
			n++
		}
	}
	return n
}

type eventLog struct {
	mu    sync.Mutex
	lines []string
}

func (b *eventLog) Event(_ *v1.Pod, _, kind, reason, message string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.lines = append(b.lines, kind+" "+reason+" "+message)
}

func (b *eventLog) take() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	out := b.lines
	b.lines = nil
	return out
}

func manager(t *testing.T, r *registry, c Config) (*Manager, *eventLog) {
	t.Helper()
	b := &eventLog{}
	if r.present == nil {
		r.present = map[string]bool{}
	}
	c.Runtime, c.Events = r, b
	m, err := New(c)
	testutil.Must(t, err)
	return m, b
}

func aPod(uid string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "p", UID: types.UID(uid)}}
}

func container(image string, policy v1.PullPolicy) *v1.Container {
	return &v1.Container{Name: "app", Image: image, ImagePullPolicy: policy}
}

func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		image   string
		policy  v1.PullPolicy
		present string
		calls   []string
		reason  string // of the error
		ensured string // policy, present, pull required
		events  []string
	}{
		{"a:1", v1.PullIfNotPresent, "a:1", []string{"status a:1"}, "", "IfNotPresent true false", []string{`Normal Pulled Container image "a:1" already present on machine`}},
		{"a:1", "", "a:1", []string{"status a:1"}, "", "IfNotPresent true false", []string{`Normal Pulled Container image "a:1" already present on machine`}},
		{"a", "", "a:latest", []string{"pull a:latest as ", "status a:latest"}, "", "Always unknown true", []string{`Normal Pulling Pulling image "a"`, `Normal Pulled Successfully pulled image "a" in 3s (3s including waiting). Image size: 42 bytes.`}},
		{"a", v1.PullIfNotPresent, "", []string{"status a:latest", "pull a:latest as ", "status a:latest"}, "", "IfNotPresent false true", []string{`Normal Pulling Pulling image "a"`, `Normal Pulled Successfully pulled image "a" in 3s (3s including waiting). Image size: 42 bytes.`}},
		{"a@sha256:" + hex64, "", "a@sha256:" + hex64, []string{"status a@sha256:" + hex64}, "", "IfNotPresent true false", []string{`Normal Pulled Container image "a@sha256:` + hex64 + `" already present on machine`}},
		{"a:1", v1.PullAlways, "a:1", []string{"pull a:1 as ", "status a:1"}, "", "Always unknown true", []string{`Normal Pulling Pulling image "a:1"`, `Normal Pulled Successfully pulled image "a:1" in 3s (3s including waiting). Image size: 42 bytes.`}},
		{"a:1", v1.PullNever, "a:1", []string{"status a:1"}, "", "Never true false", []string{`Normal Pulled Container image "a:1" already present on machine`}},
		{"a:1", v1.PullNever, "", []string{"status a:1"}, ReasonNeverPull, "Never false true", []string{`Warning ErrImageNeverPull Container image "a:1" is not present with pull policy of Never`, "Warning Failed Error: ErrImageNeverPull"}},
		{"A:1", v1.PullAlways, "", nil, ReasonInvalidName, "", []string{`Warning InspectFailed Failed to apply default image tag "A:1": couldn't parse image name "A:1": invalid reference format: repository name (library/A) must be lowercase`, "Warning Failed Error: InvalidImageName"}},
	} {
		t.Run(c.image+" "+string(c.policy)+" "+c.present, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &registry{present: map[string]bool{c.present: true}, took: 3 * time.Second}
				ensured, pulled := "", ""
				m, b := manager(t, r, Config{
					Ensured: func(policy v1.PullPolicy, present, pull *bool) {
						ensured = fmt.Sprint(policy, " ", text(present), " ", text(pull))
					},
					Pulled: func(size uint64, took time.Duration) { pulled = fmt.Sprint(size, " ", took) },
				})
				result, err := m.Ensure(t.Context(), aPod("1"), container(c.image, c.policy), nil)
				if ensured != c.ensured || (pulled == "42 3s") != (r.pulls() > 0) {
					t.Errorf("ensured %q, want %q; pulled %q", ensured, c.ensured, pulled)
				}
				var fault *Error
				if errors.As(err, &fault) != (c.reason != "") || fault != nil && fault.Reason != c.reason {
					t.Errorf("error %v, want reason %q", err, c.reason)
				}
				if err == nil && (result.Ref == "" || result.ID == "" || result.Image == nil || result.Pulled != (r.pulls() > 0)) {
					t.Errorf("result %+v", result)
				}
				if !slices.Equal(r.calls, c.calls) {
					t.Errorf("calls %q, want %q", r.calls, c.calls)
				}
				if events := b.take(); !slices.Equal(events, c.events) {
					t.Errorf("events %q, want %q", events, c.events)
				}
			})
		})
	}
}

func text(b *bool) string {
	if b == nil {
		return "unknown"
	}
	return strconv.FormatBool(*b)
}

func TestSharedPull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{took: 10 * time.Second}
		m, _ := manager(t, r, Config{})
		first, leave := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		errs := make([]error, 5)
		for i := range errs {
			ctx := t.Context()
			if i == 0 {
				ctx = first
			}
			wg.Go(func() {
				_, errs[i] = m.Ensure(ctx, aPod(fmt.Sprint(i)), container("a:1", v1.PullAlways), nil)
			})
			synctest.Wait()
		}
		time.Sleep(time.Second)
		leave() // the call that started it
		wg.Wait()
		if !errors.Is(errs[0], context.Canceled) {
			t.Errorf("who left got %v", errs[0])
		}
		for i, err := range errs[1:] {
			if err != nil {
				t.Errorf("waiter %d got %v", i+1, err)
			}
		}
		if n := r.pulls(); n != 1 {
			t.Errorf("%d pulls for one image", n)
		}
		if len(m.flights) != 0 {
			t.Errorf("%d flights left", len(m.flights))
		}
	})
}

func TestLastWaiterCancelsThePull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{took: time.Hour}
		m, b := manager(t, r, Config{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := m.Ensure(ctx, aPod("1"), container("a:1", v1.PullAlways), nil)
		var fault *Error
		if !errors.Is(err, context.DeadlineExceeded) || errors.As(err, &fault) {
			t.Errorf("got %v", err)
		}
		if r.running != 0 || time.Since(began) != time.Second {
			t.Errorf("%d pulls run on, after %v", r.running, time.Since(began))
		}
		// Nothing was counted: the next call pulls at once.
		r.took = 0
		if _, err := m.Ensure(t.Context(), aPod("1"), container("a:1", v1.PullAlways), nil); err != nil {
			t.Error(err)
		}
		for _, e := range b.take() {
			if strings.Contains(e, "Failed") {
				t.Errorf("event %q for a call that its caller gave up", e)
			}
		}
	})
}

func TestOthersSecretsAreNotShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{took: time.Second, pullErr: func(_ string, a *runtimeapi.AuthConfig) error {
			if a.GetUsername() != "ann" {
				return errors.New("denied")
			}
			return nil
		}}
		m, _ := manager(t, r, Config{})
		var wg sync.WaitGroup
		var with, without error
		wg.Go(func() {
			_, with = m.Ensure(t.Context(), aPod("1"), container("r.example/a:1", v1.PullAlways), []v1.Secret{secret("r.example", "ann")})
		})
		wg.Go(func() {
			_, without = m.Ensure(t.Context(), aPod("2"), container("r.example/a:1", v1.PullAlways), nil)
		})
		wg.Wait()
		if with != nil || without == nil {
			t.Errorf("with the secret %v, without %v", with, without)
		}
		wg.Go(func() {
			_, with = m.Ensure(t.Context(), aPod("3"), container("r.example/b:1", v1.PullAlways), []v1.Secret{secret("r.example", "bob")})
		})
		wg.Go(func() {
			_, without = m.Ensure(t.Context(), aPod("4"), container("r.example/b:1", v1.PullAlways), []v1.Secret{secret("r.example", "ann")})
		})
		wg.Wait()
		if with == nil || without != nil {
			t.Errorf("with a secret that is refused %v, with one that is not %v", with, without)
		}
	})
}

func TestEachCredentialIsTried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{pullErr: func(_ string, a *runtimeapi.AuthConfig) error {
			if a.GetUsername() == "new" {
				return nil
			}
			return errors.New("denied for " + a.GetUsername())
		}}
		m, _ := manager(t, r, Config{})
		c := container("r.example/a:1", v1.PullAlways)
		if _, err := m.Ensure(t.Context(), aPod("1"), c, []v1.Secret{secret("r.example", "old"), secret("r.example", "new")}); err != nil {
			t.Error(err)
		}
		_, err := m.Ensure(t.Context(), aPod("2"), c, []v1.Secret{secret("r.example", "x"), secret("r.example", "y")})
		if err == nil || err.Error() != "[denied for x, denied for y]" {
			t.Errorf("error %v", err)
		}
	})
}

func TestParallelism(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{took: time.Second}
		m, _ := manager(t, r, Config{MaxParallel: 3})
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 9 {
			wg.Go(func() {
				if _, err := m.Ensure(t.Context(), aPod("1"), container(fmt.Sprintf("a:%d", i), v1.PullAlways), nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if r.most != 3 || time.Since(began) != 3*time.Second {
			t.Errorf("%d at once, all in %v; want 3 at once in 3s", r.most, time.Since(began))
		}
	})
}

// TestPullRate: pulls beyond the rate wait, and the wait can be left.
func TestPullRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{}
		m, _ := manager(t, r, Config{PullQPS: 2, PullBurst: 3})
		began := time.Now()
		var wg sync.WaitGroup
		for i := range 7 {
			wg.Go(func() {
				if _, err := m.Ensure(t.Context(), aPod("1"), container(fmt.Sprintf("a:%d", i), v1.PullAlways), nil); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(began); r.pulls() != 7 || took < 1900*time.Millisecond || took > 2100*time.Millisecond {
			t.Errorf("%d pulls in %v; want 3 at once, and then 2 a second", r.pulls(), took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		if _, err := m.Ensure(ctx, aPod("1"), container("b:1", v1.PullAlways), nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if n := r.pulls(); n != 7 {
			t.Errorf("%d pulls, although the last call left before its turn", n)
		}
	})
}

func TestWaitForASlotCanBeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{took: time.Hour}
		m, _ := manager(t, r, Config{MaxParallel: 1})
		long, stop := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() { _, _ = m.Ensure(long, aPod("1"), container("a:1", v1.PullAlways), nil) })
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := m.Ensure(ctx, aPod("2"), container("b:1", v1.PullAlways), nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		stop()
		wg.Wait()
		if n := r.pulls(); n != 1 {
			t.Errorf("%d pulls, want the first alone", n)
		}
	})
}

func TestBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := true
		r := &registry{pullErr: func(string, *runtimeapi.AuthConfig) error {
			if broken {
				return status.Error(codes.Unknown, "no such host")
			}
			return nil
		}}
		m, b := manager(t, r, Config{})
		p, c := aPod("1"), container("a:1", v1.PullIfNotPresent)
		for i, wait := range []time.Duration{10, 20, 40, 80, 160, 300, 300} {
			wait *= time.Second
			_, err := m.Ensure(t.Context(), p, c, nil)
			var fault *Error
			if !errors.As(err, &fault) || fault.Reason != ReasonPull || fault.Message != "no such host" || !fault.Until.Equal(time.Now().Add(wait)) {
				t.Fatalf("failure %d: %+v; want one until %v from now", i, err, wait)
			}
			b.take()
			time.Sleep(wait - time.Millisecond)
			before := r.pulls()
			_, err = m.Ensure(t.Context(), p, c, nil)
			if !errors.As(err, &fault) || fault.Reason != ReasonBackOff || fault.Message != `Back-off pulling image "a:1": ErrImagePull: no such host` {
				t.Fatalf("in back-off %d: %v", i, err)
			}
			if want := []string{`Normal BackOff Back-off pulling image "a:1"`, "Warning Failed Error: ImagePullBackOff"}; !slices.Equal(b.take(), want) || r.pulls() != before {
				t.Fatal("a back-off must not pull, and say BackOff")
			}
			time.Sleep(time.Millisecond)
		}
		// Another pod does not wait for this one's failures.
		if _, err := m.Ensure(t.Context(), aPod("2"), c, nil); err == nil || err.Error() != "no such host" {
			t.Errorf("another pod got %v", err)
		}
		broken = false
		if _, err := m.Ensure(t.Context(), p, c, nil); err != nil {
			t.Error(err)
		}
		broken = true
		r.present = map[string]bool{}
		var fault *Error
		if _, err := m.Ensure(t.Context(), p, c, nil); !errors.As(err, &fault) || !fault.Until.Equal(time.Now().Add(10*time.Second)) {
			t.Errorf("after a success the back-off must begin again: %+v", err)
		}
		m.Forget(p)
		m.Forget(aPod("2"))
		if len(m.backoff.last) != 0 {
			t.Errorf("left after Forget: %v", m.backoff.last)
		}
	})
}

func TestPresentImageIgnoresBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &registry{pullErr: func(string, *runtimeapi.AuthConfig) error { return errors.New("broken") }}
		m, _ := manager(t, r, Config{})
		c := container("a:1", v1.PullIfNotPresent)
		if _, err := m.Ensure(t.Context(), aPod("1"), c, nil); err == nil {
			t.Fatal("want a failure first")
		}
		r.present["a:1"] = true // loaded by hand meanwhile
		if _, err := m.Ensure(t.Context(), aPod("1"), c, nil); err != nil {
			t.Error(err)
		}
	})
}

// TestErrors: which failures count, and under which name.
func TestErrors(t *testing.T) {
	lost := errors.New("connection lost")
	for _, c := range []struct {
		name    string
		err     error
		reason  string // empty: not counted
		message string
	}{
		{"plain", errors.New("boom"), ReasonPull, "boom"},
		{"status", status.Error(codes.NotFound, "no such image"), ReasonPull, "rpc error: code = NotFound desc = no such image"},
		{"named by whom it was asked for", fmt.Errorf("cri PullImage: %w", status.Error(codes.NotFound, "no such image")), ReasonPull, "rpc error: code = NotFound desc = no such image"},
		{"of no code", fmt.Errorf("cri PullImage: %w", status.Error(codes.Unknown, "oh no")), ReasonPull, "oh no"},
		{"registry", status.Error(codes.Unknown, "RegistryUnavailable: 503"), ReasonRegistry, "image pull failed for a:1 because the registry is unavailable: 503"},
		{"registry under a transport's code", status.Error(codes.Unavailable, "RegistryUnavailable: 503"), ReasonRegistry, "image pull failed for a:1 because the registry is unavailable: 503"},
		{"signature", errors.New("SignatureValidationFailed: bad key"), ReasonSignature, "image pull failed for a:1 because the signature validation failed: bad key"},
		{"the runtime gave up", status.Error(codes.Canceled, "no progress for 5m"), ReasonPull, "rpc error: code = Canceled desc = no progress for 5m"},
		{"transport", lost, "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := &registry{pullErr: func(string, *runtimeapi.AuthConfig) error { return c.err }}
				m, b := manager(t, r, Config{Transport: func(err error) bool {
					return errors.Is(err, lost) || status.Code(err) == codes.Unavailable || status.Code(err) == codes.Canceled
				}})
				_, err := m.Ensure(t.Context(), aPod("1"), container("a:1", v1.PullAlways), nil)
				var fault *Error
				if !errors.Is(err, c.err) {
					t.Errorf("%v does not hold the runtime's error", err)
				}
				if errors.As(err, &fault) != (c.reason != "") || fault != nil && (fault.Reason != c.reason || fault.Message != c.message) {
					t.Errorf("got %#v, want %s %q", err, c.reason, c.message)
				}
				if c.reason == "" {
					if events := b.take(); len(events) != 1 {
						t.Errorf("events %q, want Pulling alone", events)
					}
					if len(m.backoff.last) != 0 {
						t.Error("a lost answer was counted")
					}
				}
			})
		})
	}
}

func TestInspectErrors(t *testing.T) {
	lost := errors.New("connection lost")
	r := &registry{statErr: errors.New("disk broken")}
	m, _ := manager(t, r, Config{Transport: func(err error) bool { return errors.Is(err, lost) }})
	var fault *Error
	_, err := m.Ensure(t.Context(), aPod("1"), container("a:1", v1.PullIfNotPresent), nil)
	if !errors.As(err, &fault) || fault.Reason != ReasonInspect || fault.Message != `Failed to inspect image "a:1": disk broken` {
		t.Errorf("got %v", err)
	}
	r.statErr = lost
	if _, err := m.Ensure(t.Context(), aPod("1"), container("a:1", v1.PullIfNotPresent), nil); !errors.Is(err, lost) || errors.As(err, &fault) && fault.Err == lost {
		t.Errorf("got %v; want the transport's error as it is", err)
	}
}

func TestBrokenSecretBacksOff(t *testing.T) {
	s := secret()
	s.Data[v1.DockerConfigJsonKey] = []byte("{")
	m, _ := manager(t, &registry{}, Config{})
	c := container("a:1", v1.PullAlways)
	var fault *Error
	if _, err := m.Ensure(t.Context(), aPod("1"), c, []v1.Secret{s}); !errors.As(err, &fault) || fault.Reason != ReasonPull || fault.Until.IsZero() {
		t.Errorf("got %v", err)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{}, {Runtime: &registry{}, MaxParallel: -1}, {Runtime: &registry{}, PullQPS: -1}, {Runtime: &registry{}, PullQPS: 1}, {Runtime: &registry{}, BackoffMax: time.Second}} {
		if _, err := New(c); err == nil {
			t.Errorf("New(%+v) has no error", c)
		}
	}
}
