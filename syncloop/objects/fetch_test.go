package objects

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// asking starts a manager with a strategy that reads on demand, and with the TTL of the cluster.
func asking(t *testing.T, a *api, s Strategy, ttl *time.Duration) *Manager {
	t.Helper()
	m, err := New(Config{Client: a.Clientset, Strategy: s, TTL: func() (time.Duration, bool) {
		if ttl == nil {
			return 0, false
		}
		return *ttl, true
	}})
	testutil.Must(t, err)
	return m
}

// holds reads the object, and wants this content and so many gets up to now.
func holds(t *testing.T, m *Manager, a *api, want string, gets int32) {
	t.Helper()
	got, err := m.ConfigMap(t.Context(), "ns", "c")
	if err != nil || got.Data["k"] != want {
		t.Fatalf("%v, %v; want %q", got, err, want)
	}
	if n := a.gets.Load(); n != gets {
		t.Fatalf("the API server was asked %d times; want %d", n, gets)
	}
}

func change(t *testing.T, a *api, version, value string) {
	t.Helper()
	if _, err := a.CoreV1().ConfigMaps("ns").Update(t.Context(), configMap("c", version, map[string]string{"k": value}), metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestCacheAsksWhenTheAnswerIsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(configMap("c", "1", map[string]string{"k": "one"}))
		var ttl time.Duration
		m := asking(t, a, Cache, &ttl)
		ttl = 30 * time.Second
		m.Register(podNaming("a", "c"))
		holds(t, m, a, "one", 1)
		change(t, a, "2", "two")
		time.Sleep(ttl - time.Second)
		m.Register(podNaming("a", "c")) // an update of a known pod causes no get
		holds(t, m, a, "one", 1)
		time.Sleep(time.Second)
		holds(t, m, a, "two", 2)

		// A pod that registers later must see the current content.
		change(t, a, "3", "three")
		m.Register(podNaming("b", "c"))
		holds(t, m, a, "three", 3)
		holds(t, m, a, "three", 3)

		// The cluster may change the TTL at any time.
		change(t, a, "4", "four")
		ttl = 0
		holds(t, m, a, "four", 4)
		holds(t, m, a, "four", 5)

		m.Unregister("a")
		m.Unregister("b")
		if _, err := m.ConfigMap(t.Context(), "ns", "c"); err == nil {
			t.Error("an object that no pod names was read")
		}
		if a.watches.Load() != 0 {
			t.Error("something was watched")
		}
	})
}

// TestCacheOfARestoredStore: a version older than the known one may come from a lagging watch
// cache, and is ignored. From the store itself it is accepted, as the store may have been restored.
func TestCacheOfARestoredStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(configMap("c", "7", map[string]string{"k": "seven"}))
		ttl := time.Second
		m := asking(t, a, Cache, &ttl)
		m.Register(podNaming("a", "c"))
		holds(t, m, a, "seven", 1)
		change(t, a, "3", "restored")
		time.Sleep(ttl)
		holds(t, m, a, "restored", 3) // from the watch cache, then from the store
		time.Sleep(ttl)
		holds(t, m, a, "restored", 4)
		m.Unregister("a")
	})
}

func TestCacheByDefaultIsAMinuteOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(configMap("c", "1", map[string]string{"k": "one"}))
		m := asking(t, a, Cache, nil)
		m.Register(podNaming("a", "c"))
		holds(t, m, a, "one", 1)
		time.Sleep(time.Minute - time.Nanosecond)
		holds(t, m, a, "one", 1)
		time.Sleep(time.Nanosecond)
		holds(t, m, a, "one", 2)
	})
}

func TestCacheWithoutTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(configMap("c", "1", map[string]string{"k": "one"}))
		m := asking(t, a, Cache, nil)
		m.Register(podNaming("a", "c"))
		holds(t, m, a, "one", 1)
		away := error(errors.New("connection refused"))
		a.refuse.Store(&away)
		time.Sleep(time.Hour)
		holds(t, m, a, "one", 2) // old, but still what the pod runs with
		m.Register(podNaming("b", "c"))
		for range 2 {
			if _, err := m.ConfigMap(t.Context(), "ns", "c"); err == nil || err.Error() != "read configmap ns/c: connection refused" {
				t.Errorf("err = %v; a new pod is to have what holds now", err)
			}
		}
		a.refuse.Store(nil)
		holds(t, m, a, "one", 5)
	})
}

func TestAskedAgainWhereItIsForbidden(t *testing.T) {
	for _, s := range []Strategy{Cache, Get} {
		synctest.Test(t, func(t *testing.T) {
			a := newAPI(configMap("c", "1", map[string]string{"k": "one"}))
			refusal := error(apierrors.NewForbidden(v1.Resource("configmaps"), "c", errors.New("no relationship found")))
			a.refuse.Store(&refusal)
			m := asking(t, a, s, nil)
			m.Register(podNaming("a", "c"))
			time.AfterFunc(time.Second, func() { a.refuse.Store(nil) })
			if got, err := m.ConfigMap(t.Context(), "ns", "c"); err != nil || got.Data["k"] != "one" {
				t.Errorf("%s: %v, %v", s, got, err)
			}
			a.refuse.Store(&refusal)
			m.Register(podNaming("b", "c"))
			before := time.Now()
			_, err := m.ConfigMap(t.Context(), "ns", "c")
			if !apierrors.IsForbidden(err) || time.Since(before) != defaultSyncTimeout {
				t.Errorf("%s: %v after %v", s, err, time.Since(before))
			}
		})
	}
}

func TestGetAsksEachTime(t *testing.T) {
	a := newAPI(configMap("c", "1", map[string]string{"k": "one"}))
	m := asking(t, a, Get, nil)
	m.Register(podNaming("a", "c"))
	holds(t, m, a, "one", 1)
	change(t, a, "2", "two")
	holds(t, m, a, "two", 2)
	testutil.Must(t, a.CoreV1().ConfigMaps("ns").Delete(t.Context(), "c", metav1.DeleteOptions{}))
	if _, err := m.ConfigMap(t.Context(), "ns", "c"); !apierrors.IsNotFound(err) || err.Error() != `configmap "c" not found` {
		t.Errorf("err = %v", err)
	}
	if a.watches.Load() != 0 {
		t.Error("something was watched")
	}
}

// A missing object is requested each time, an immutable one once.
func TestCacheOfWhatIsMissingOrFixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		m := asking(t, a, Cache, nil)
		m.Register(podNaming("a", "c"))
		if _, err := m.ConfigMap(t.Context(), "ns", "c"); !apierrors.IsNotFound(err) {
			t.Fatalf("err = %v", err)
		}
		fixed := configMap("c", "2", map[string]string{"k": "fixed"})
		yes := true
		fixed.Immutable = &yes
		if _, err := a.CoreV1().ConfigMaps("ns").Create(t.Context(), fixed, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		holds(t, m, a, "fixed", 2)
		time.Sleep(time.Hour)
		holds(t, m, a, "fixed", 2)
	})
}

func TestUnknownStrategy(t *testing.T) {
	if _, err := New(Config{Client: newAPI().Clientset, Strategy: "watch"}); err == nil {
		t.Error("a strategy that there is not was taken")
	}
}
