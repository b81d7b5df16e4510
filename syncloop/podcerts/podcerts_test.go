package podcerts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// world is a cluster with a signer that a test controls.
type world struct {
	t      *testing.T
	client *fake.Clientset
	m      *Manager
	sign   func(*certificatesv1.PodCertificateRequest) // called on each new request; nil leaves it pending

	mu      sync.Mutex
	made    []*certificatesv1.PodCertificateRequest
	events  []string
	updates []types.UID
	fail    error // of creating a request
}

// begin runs the manager until the test ends, inside a synctest bubble.
func begin(t *testing.T) *world {
	w := &world{t: t, client: fake.NewClientset()}
	w.client.PrependReactor("create", "podcertificaterequests", func(a clienttesting.Action) (bool, runtime.Object, error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.fail != nil {
			return true, nil, w.fail
		}
		r := a.(clienttesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest)
		r.Name = fmt.Sprint("req-", len(w.made)+1)
		w.made = append(w.made, r.DeepCopy())
		if w.sign != nil {
			w.sign(r)
		}
		return false, nil, nil
	})
	m, err := New(Config{
		Client: w.client, NodeName: "box",
		Node: func(context.Context) (*v1.Node, error) {
			return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "box", UID: "node-uid"}}, nil
		},
		ServiceAccount: func(_ context.Context, namespace, name string) (*v1.ServiceAccount, error) {
			return &v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: "account-uid"}}, nil
		},
		Event: func(p *v1.Pod, reason, message string) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, reason+" "+message)
		},
	})
	testutil.Must(t, err)
	w.m = m
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	running.Go(func() {
		for {
			select {
			case uid := <-m.Updates():
				w.mu.Lock()
				w.updates = append(w.updates, uid)
				w.mu.Unlock()
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return w
}

func (w *world) requests() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.made)
}

func (w *world) updatesOf() []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.updates)
}

func (w *world) said() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.events)
}

func testPod(uid types.UID) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: uid}, Spec: v1.PodSpec{
		ServiceAccountName: "robot",
		Volumes: []v1.Volume{{Name: "other"}, {Name: "certs", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
			{ConfigMap: &v1.ConfigMapProjection{}},
			{PodCertificate: &v1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ED25519", CredentialBundlePath: "b",
				MaxExpirationSeconds: new(int32), UserAnnotations: map[string]string{"example.com/a": "b"}}},
		}}}}},
	}}
}

const chain = "words\n-----BEGIN CERTIFICATE-----\nX: y\n\nb25l\n-----END CERTIFICATE-----\nmore\n-----BEGIN CERTIFICATE-----\ndHdv\n-----END CERTIFICATE-----\n"

// issue signs for a day, with renewal due after half of it.
func issue(r *certificatesv1.PodCertificateRequest) {
	now := time.Now()
	r.Status = certificatesv1.PodCertificateRequestStatus{
		Conditions:       []metav1.Condition{{Type: certificatesv1.PodCertificateRequestConditionTypeIssued, Status: metav1.ConditionTrue}},
		CertificateChain: chain, BeginRefreshAt: &metav1.Time{Time: now.Add(12 * time.Hour)}, NotAfter: &metav1.Time{Time: now.Add(24 * time.Hour)},
	}
}

func refuse(kind string) func(*certificatesv1.PodCertificateRequest) {
	return func(r *certificatesv1.PodCertificateRequest) {
		r.Status.Conditions = []metav1.Condition{{Type: kind, Status: metav1.ConditionTrue, Reason: "NotYou", Message: "not this pod"}}
	}
}

// bundle reads the pod's bundle, checks the chain, and returns the key.
func (w *world) bundle(p *v1.Pod) (key string, err error) {
	w.t.Helper()
	k, c, err := w.m.Bundle(w.t.Context(), p, "certs", 1)
	if err == nil && string(c) != "-----BEGIN CERTIFICATE-----\nb25l\n-----END CERTIFICATE-----\n-----BEGIN CERTIFICATE-----\ndHdv\n-----END CERTIFICATE-----\n" {
		w.t.Errorf("the chain is %s", c)
	}
	return string(k), err
}

func (w *world) want(err error, text string) {
	w.t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) {
		w.t.Errorf("error %v, want %q", err, text)
	}
}

// wantStates compares the states of the projections, of which there is one.
func (w *world) wantStates(want ...string) {
	w.t.Helper()
	var got []string
	for s, n := range w.m.States(time.Now()) {
		got = append(got, s.Signer+" "+s.State)
		if n != 1 {
			w.t.Errorf("%d projections are %s", n, s.State)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		w.t.Error(diff)
	}
}

func TestIssueAndRenew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t)
		w.sign = issue
		p := testPod("u1")
		began := time.Now()
		first, err := w.bundle(p)
		if err != nil || time.Since(began) > patience {
			t.Fatalf("after %v: %v", time.Since(began), err)
		}
		w.mu.Lock()
		r := w.made[0]
		w.mu.Unlock()
		if diff := cmp.Diff(certificatesv1.PodCertificateRequestSpec{
			SignerName: "example.com/s", PodName: "web", PodUID: "u1", ServiceAccountName: "robot", ServiceAccountUID: "account-uid",
			NodeName: "box", NodeUID: "node-uid", MaxExpirationSeconds: new(int32), StubPKCS10Request: r.Spec.StubPKCS10Request,
			UnverifiedUserAnnotations: map[string]string{"example.com/a": "b"},
		}, r.Spec); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: "u1"}}, r.OwnerReferences); diff != "" || r.Namespace != "shop" {
			t.Error(r.Namespace, diff)
		}
		synctest.Wait()
		if diff := cmp.Diff([]types.UID{"u1"}, w.updatesOf()); diff != "" {
			t.Error(diff)
		}
		time.Sleep(12*time.Hour - time.Minute)
		if again, err := w.bundle(p); err != nil || again != first || w.requests() != 1 {
			t.Errorf("before its time: %d requests, %v", w.requests(), err)
		}
		time.Sleep(jitter + 2*time.Minute)
		synctest.Wait()
		second, err := w.bundle(p)
		if err != nil || second == first || w.requests() != 2 || len(w.updatesOf()) != 2 {
			t.Errorf("after its time: %d requests, updates of %v, %v; the key is new: %v", w.requests(), w.updatesOf(), err, second != first)
		}
		if len(w.said()) != 0 {
			t.Errorf("events %v", w.said())
		}
		// Another pod has its own key, and a forgotten pod starts again.
		other, err := w.bundle(testPod("u2"))
		if err != nil || other == second {
			t.Errorf("another pod: %v, the same key: %v", err, other == second)
		}
		w.m.Forget("u1")
		if third, err := w.bundle(p); err != nil || third == second || w.requests() != 4 {
			t.Errorf("after it was forgotten: %d requests, %v", w.requests(), err)
		}
	})
}

func TestWaitForTheSigner(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t)
		p := testPod("u1")
		_, err := w.bundle(p)
		w.want(err, "credential bundle is not issued yet")
		time.Sleep(time.Hour)
		synctest.Wait()
		if w.requests() != 1 || len(w.updatesOf()) != 0 {
			t.Errorf("%d requests, updates of %v", w.requests(), w.updatesOf())
		}
		api := w.client.CertificatesV1().PodCertificateRequests("shop")
		r, err := api.Get(t.Context(), "req-1", metav1.GetOptions{})
		testutil.Must(t, err)
		issue(r)
		if _, err := api.UpdateStatus(t.Context(), r, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(w.updatesOf()) != 1 {
			t.Errorf("updates of %v", w.updatesOf())
		}
		if _, err := w.bundle(p); err != nil {
			t.Error(err)
		}
	})
}

func TestRefusedForGood(t *testing.T) {
	for kind, want := range map[string]string{certificatesv1.PodCertificateRequestConditionTypeDenied: "denied", certificatesv1.PodCertificateRequestConditionTypeFailed: "failed"} {
		t.Run(want, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := begin(t)
				w.sign = refuse(kind)
				for range 3 {
					_, err := w.bundle(testPod("u1"))
					w.want(err, `PodCertificateRequest was permanently `+want+`: reason="NotYou" message="not this pod"`)
					time.Sleep(time.Hour)
				}
				if w.requests() != 1 {
					t.Errorf("%d requests", w.requests())
				}
				w.wantStates("example.com/s " + want)
				if diff := cmp.Diff([]string{kind + ` PodCertificateRequest shop/req-1: ` + want + `: reason="NotYou", message="not this pod"`}, w.said()); diff != "" {
					t.Error(diff)
				}
			})
		})
	}
}

// A renewal that no one signs records an event when it is late and one when the certificate
// expires. The old certificate stays in use throughout.
func TestLateRenewal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t)
		w.sign = issue
		p := testPod("u1")
		first, err := w.bundle(p)
		testutil.Must(t, err)
		w.mu.Lock()
		w.sign = nil
		w.mu.Unlock()
		for _, c := range []struct {
			until time.Duration
			state string
			want  []string
		}{
			{12*time.Hour + 9*time.Minute, "fresh", nil},
			{12*time.Hour + 17*time.Minute, "overdue_for_refresh", []string{"CertificateOverdueForRefresh PodCertificate refresh overdue"}},
			{23 * time.Hour, "overdue_for_refresh", []string{"CertificateOverdueForRefresh PodCertificate refresh overdue"}},
			{25 * time.Hour, "expired", []string{"CertificateOverdueForRefresh PodCertificate refresh overdue", "CertificateExpired PodCertificate expired"}},
		} {
			time.Sleep(time.Until(beginning.Add(c.until)))
			synctest.Wait()
			if diff := cmp.Diff(c.want, w.said()); diff != "" {
				t.Errorf("after %v: %s", c.until, diff)
			}
			if now, err := w.bundle(p); err != nil || now != first {
				t.Errorf("after %v: %v", c.until, err)
			}
			w.wantStates("example.com/s " + c.state)
		}
		if w.requests() != 2 {
			t.Errorf("%d requests", w.requests())
		}
	})
}

// beginning is when every bubble begins.
var beginning = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)

func TestARequestThatIsDeletedIsMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t)
		p := testPod("u1")
		_, err := w.bundle(p)
		w.want(err, "not issued yet")
		testutil.Must(t, w.client.CertificatesV1().PodCertificateRequests("shop").Delete(t.Context(), "req-1", metav1.DeleteOptions{}))
		time.Sleep(abandon - time.Minute)
		if w.requests() != 1 {
			t.Errorf("%d requests, though it may only not be seen yet", w.requests())
		}
		w.mu.Lock()
		w.sign = issue
		w.mu.Unlock()
		time.Sleep(jitter + 3*time.Minute)
		if _, err := w.bundle(p); err != nil || w.requests() != 2 {
			t.Errorf("%d requests, %v", w.requests(), err)
		}
	})
}

func TestTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t)
		w.mu.Lock()
		w.fail, w.sign = errors.New("no such signer"), issue
		w.mu.Unlock()
		p := testPod("u1")
		_, err := w.bundle(p)
		w.want(err, "create a PodCertificateRequest: no such signer")
		time.Sleep(10 * time.Minute)
		tries := 0
		for _, a := range w.client.Actions() {
			if a.Matches("create", "podcertificaterequests") {
				tries++
			}
		}
		if tries < 10 || tries > 20 {
			t.Errorf("%d tries in ten minutes", tries)
		}
		w.mu.Lock()
		w.fail = nil
		w.mu.Unlock()
		time.Sleep(lastAgain)
		if _, err := w.bundle(p); err != nil {
			t.Error(err)
		}
	})
}

// Requests are not sent without pause if the host's clock is ahead or the signer issues expired
// certificates.
func TestRenewalsRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t)
		w.mu.Lock()
		w.sign = func(r *certificatesv1.PodCertificateRequest) {
			issue(r)
			r.Status.BeginRefreshAt = &metav1.Time{Time: time.Now().Add(-time.Hour)}
			r.Status.NotAfter = &metav1.Time{Time: time.Now().Add(-time.Minute)}
		}
		w.mu.Unlock()
		if _, err := w.bundle(testPod("u1")); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10*time.Minute - time.Second)
		if n := w.requests(); n < 5 || n > 10 {
			t.Errorf("%d requests in ten minutes", n)
		}
	})
}

func TestNoSuchSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := begin(t)
		for _, c := range []struct {
			volume string
			source int
		}{{"other", 0}, {"certs", 0}, {"certs", 2}, {"certs", -1}, {"none", 1}} {
			if _, _, err := w.m.Bundle(t.Context(), testPod("u"), c.volume, c.source); err == nil {
				t.Errorf("%+v has a bundle", c)
			}
		}
		synctest.Wait()
		if len(w.client.Actions()) != 0 {
			t.Errorf("without a certificate the API server was asked: %v", w.client.Actions())
		}
	})
}
