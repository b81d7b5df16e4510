package objects

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/bowline-k8s/bowline/internal/testutil"
)

// api is a fake API server that counts gets and watches, and notes lists and watches without a
// name.
type api struct {
	*fake.Clientset
	gets, watches atomic.Int32
	wide          atomic.Bool // something was listed or watched without a name
	refuse        atomic.Pointer[error]
}

func newAPI(objects ...runtime.Object) *api {
	a := &api{Clientset: fake.NewClientset(objects...)}
	a.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		a.gets.Add(1)
		if err := a.refuse.Load(); err != nil {
			return true, nil, *err
		}
		return false, nil, nil
	})
	a.PrependReactor("list", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		a.look(action.(clienttesting.ListAction).GetListRestrictions().Fields.String())
		return false, nil, nil
	})
	a.PrependWatchReactor("*", func(action clienttesting.Action) (bool, watch.Interface, error) {
		a.look(action.(clienttesting.WatchAction).GetWatchRestrictions().Fields.String())
		// Count it once it is open, so that it sees what the test does next.
		w, err := a.Tracker().Watch(action.GetResource(), action.GetNamespace())
		a.watches.Add(1)
		return true, w, err
	})
	return a
}

func (a *api) look(selector string) {
	if !strings.HasPrefix(selector, "metadata.name=") {
		a.wide.Store(true)
	}
}

func start(t *testing.T, a *api, timeout time.Duration) *Manager {
	t.Helper()
	m, err := New(Config{Client: a.Clientset, SyncTimeout: timeout})
	testutil.Must(t, err)
	stop := testutil.Go(context.Background(), m.Run)
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
		if a.wide.Load() {
			t.Error("objects were listed or watched without naming one: the Node authorizer refuses that")
		}
	})
	return m
}

func configMap(name, version string, data map[string]string) *v1.ConfigMap {
	return &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: version}, Data: data}
}

func podNaming(uid types.UID, names ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p-" + string(uid), UID: uid}}
	for _, name := range names {
		v := v1.Volume{Name: name}
		v.ConfigMap = &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}}
		p.Spec.Volumes = append(p.Spec.Volumes, v)
	}
	return p
}

func woken(t *testing.T, m *Manager, n int) []types.UID {
	t.Helper()
	var uids []types.UID
	for range n {
		select {
		case uid := <-m.Updates():
			uids = append(uids, uid)
		case <-time.After(20 * time.Second):
			t.Fatalf("woke only %v", uids)
		}
	}
	slices.Sort(uids)
	return uids
}

func TestManyPodsShareOneWatch(t *testing.T) {
	a := newAPI(configMap("kube-root-ca.crt", "5", map[string]string{"ca.crt": "one"}))
	m := start(t, a, 0)
	for i := range 50 {
		m.Register(podNaming(types.UID(rune('A'+i)), "kube-root-ca.crt"))
	}
	got, err := m.ConfigMap(t.Context(), "ns", "kube-root-ca.crt")
	if err != nil || got.Data["ca.crt"] != "one" {
		t.Fatalf("%v, %v", got, err)
	}
	testutil.Eventually(t, "a watch", func() bool { return a.watches.Load() > 0 })
	if g, w := a.gets.Load(), a.watches.Load(); g != 1 || w != 1 {
		t.Errorf("%d gets and %d watches for 50 pods", g, w)
	}

	next := configMap("kube-root-ca.crt", "6", map[string]string{"ca.crt": "two"})
	if _, err := a.CoreV1().ConfigMaps("ns").Update(t.Context(), next, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if uids := woken(t, m, 50); len(slices.Compact(uids)) != 50 {
		t.Errorf("woke %v", uids)
	}
	if got, err := m.ConfigMap(t.Context(), "ns", "kube-root-ca.crt"); err != nil || got.Data["ca.crt"] != "two" {
		t.Fatalf("%v, %v", got, err)
	}
}

func TestDroppedWithTheLastPod(t *testing.T) {
	a := newAPI(configMap("c", "1", nil))
	m := start(t, a, 0)
	m.Register(podNaming("a", "c"))
	m.Register(podNaming("b", "c"))
	if _, err := m.ConfigMap(t.Context(), "ns", "c"); err != nil {
		t.Fatal(err)
	}
	m.Unregister("a")
	m.Unregister("a")
	if _, err := m.ConfigMap(t.Context(), "ns", "c"); err != nil {
		t.Fatalf("dropped while a pod names it: %v", err)
	}
	m.mu.Lock()
	it := m.items[key{kindConfigMap, "ns", "c"}]
	m.mu.Unlock()
	ended := make(chan struct{})
	m.Unregister("b")
	if _, err := m.ConfigMap(t.Context(), "ns", "c"); err == nil || apierrors.IsNotFound(err) || !strings.Contains(err.Error(), "not registered") {
		t.Fatalf("err = %v", err)
	}
	// Its goroutine must have ended, not only its entry be gone.
	go func() { m.workers.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(20 * time.Second):
		t.Fatalf("%v is still followed", it.key)
	}
}

func TestRegisterFollowsTheSpec(t *testing.T) {
	a := newAPI(configMap("x", "1", nil), configMap("y", "1", nil))
	m := start(t, a, 0)
	m.Register(podNaming("a", "x"))
	m.Register(podNaming("a", "y"))
	if _, err := m.ConfigMap(t.Context(), "ns", "y"); err != nil {
		t.Fatal(err)
	}
	if _, err := m.ConfigMap(t.Context(), "ns", "x"); err == nil {
		t.Fatal("x is no longer named by a pod and still held")
	}
}

func TestMissingThenCreatedWakes(t *testing.T) {
	a := newAPI()
	m := start(t, a, 0)
	m.Register(podNaming("a", "late"))
	_, err := m.ConfigMap(t.Context(), "ns", "late")
	if !apierrors.IsNotFound(err) || err.Error() != `configmap "late" not found` {
		t.Fatalf("err = %v", err)
	}
	testutil.Eventually(t, "a watch", func() bool { return a.watches.Load() > 0 })
	if _, err := a.CoreV1().ConfigMaps("ns").Create(t.Context(), configMap("late", "7", map[string]string{"k": "v"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if uids := woken(t, m, 1); uids[0] != "a" {
		t.Fatalf("woke %v", uids)
	}
	if got, err := m.ConfigMap(t.Context(), "ns", "late"); err != nil || got.Data["k"] != "v" {
		t.Fatalf("%v, %v", got, err)
	}
	testutil.Must(t, a.CoreV1().ConfigMaps("ns").Delete(t.Context(), "late", metav1.DeleteOptions{}))
	woken(t, m, 1)
	if _, err := m.ConfigMap(t.Context(), "ns", "late"); !apierrors.IsNotFound(err) {
		t.Fatalf("err = %v", err)
	}
}

// TestChangeDuringDeliveryIsSent changes an object as soon as its last change was received, which is
// when the manager is about to note that it sent it.
func TestChangeDuringDeliveryIsSent(t *testing.T) {
	a := newAPI(configMap("c", "1", nil))
	m := start(t, a, 0)
	m.Register(podNaming("a", "c"))
	m.mu.Lock()
	it := m.items[key{kindConfigMap, "ns", "c"}]
	m.mu.Unlock()
	for i := range 20_000 {
		m.changed(it)
		select {
		case <-m.Updates():
		case <-time.After(20 * time.Second):
			t.Fatalf("change %d was never sent", i)
		}
	}
}

func TestImmutableIsNotWatched(t *testing.T) {
	yes := true
	c := configMap("fixed", "1", map[string]string{"k": "v"})
	c.Immutable = &yes
	a := newAPI(c)
	m := start(t, a, 0)
	m.Register(podNaming("a", "fixed"))
	if got, err := m.ConfigMap(t.Context(), "ns", "fixed"); err != nil || got.Data["k"] != "v" {
		t.Fatalf("%v, %v", got, err)
	}
	m.workers.Wait() // its follower ends by itself
	if w := a.watches.Load(); w != 0 {
		t.Errorf("%d watches", w)
	}
	if _, err := m.ConfigMap(t.Context(), "ns", "fixed"); err != nil {
		t.Error(err)
	}
}

func TestBecomesImmutable(t *testing.T) {
	a := newAPI(configMap("c", "1", nil))
	m := start(t, a, 0)
	m.Register(podNaming("a", "c"))
	testutil.Eventually(t, "a watch", func() bool { return a.watches.Load() > 0 })
	yes := true
	c := configMap("c", "2", map[string]string{"k": "v"})
	c.Immutable = &yes
	if _, err := a.CoreV1().ConfigMaps("ns").Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	woken(t, m, 1)
	m.workers.Wait()
	if got, err := m.ConfigMap(t.Context(), "ns", "c"); err != nil || got.Data["k"] != "v" {
		t.Fatalf("%v, %v", got, err)
	}
}

func TestNoAnswerIsNotNotFound(t *testing.T) {
	a := newAPI(configMap("c", "1", nil))
	refusal := error(apierrors.NewForbidden(v1.Resource("configmaps"), "c", errors.New("no relationship found")))
	a.refuse.Store(&refusal)
	m := start(t, a, 20*time.Millisecond)
	m.Register(podNaming("a", "c"))
	testutil.Eventually(t, "a first attempt", func() bool { return a.gets.Load() > 0 })
	_, err := m.ConfigMap(t.Context(), "ns", "c")
	if err == nil || apierrors.IsNotFound(err) || !strings.HasPrefix(err.Error(), "failed to sync configmap cache") {
		t.Fatalf("err = %v", err)
	}
	// The first answer wakes the pod whose reader gave up waiting.
	a.refuse.Store(nil)
	if uids := woken(t, m, 1); uids[0] != "a" {
		t.Fatalf("woke %v", uids)
	}
	if _, err := m.ConfigMap(t.Context(), "ns", "c"); err != nil {
		t.Fatal(err)
	}
}

func TestAnOlderAnswerIsIgnored(t *testing.T) {
	m, err := New(Config{Client: newAPI().Clientset})
	testutil.Must(t, err)
	it := newItem(key{kindConfigMap, "ns", "c"})
	it.put(m, configMap("c", "10", map[string]string{"k": "new"}))
	it.put(m, configMap("c", "9", map[string]string{"k": "old"}))
	if got := it.read().(*v1.ConfigMap).Data["k"]; got != "new" {
		t.Errorf("data went back to %q", got)
	}
	// Deleted and created again: another object, whatever its version.
	again := configMap("c", "9", map[string]string{"k": "again"})
	again.UID = "other"
	it.put(m, again)
	if got := it.read().(*v1.ConfigMap).Data["k"]; got != "again" {
		t.Errorf("data = %q", got)
	}
}

func TestSecretsToo(t *testing.T) {
	a := newAPI(&v1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", ResourceVersion: "1"}, Data: map[string][]byte{"k": []byte("v")}})
	m := start(t, a, 0)
	p := podNaming("a")
	p.Spec.ImagePullSecrets = []v1.LocalObjectReference{{Name: "s"}, {Name: "none"}}
	m.Register(p)
	if got, err := m.Secret(t.Context(), "ns", "s"); err != nil || string(got.Data["k"]) != "v" {
		t.Fatalf("%v, %v", got, err)
	}
	if _, err := m.Secret(t.Context(), "ns", "none"); !apierrors.IsNotFound(err) || err.Error() != `secret "none" not found` {
		t.Fatalf("err = %v", err)
	}
}

func TestReferences(t *testing.T) {
	ref := func(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }
	p := &v1.Pod{Spec: v1.PodSpec{
		ImagePullSecrets: []v1.LocalObjectReference{ref("pull"), {}},
		Volumes: []v1.Volume{
			{VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: ref("cm-vol")}}},
			{VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "sec-vol"}}},
			{VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
				{ConfigMap: &v1.ConfigMapProjection{LocalObjectReference: ref("cm-proj")}},
				{Secret: &v1.SecretProjection{LocalObjectReference: ref("sec-proj")}},
			}}}},
			{VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{NodePublishSecretRef: &v1.LocalObjectReference{Name: "sec-csi"}}}},
		},
		InitContainers: []v1.Container{{EnvFrom: []v1.EnvFromSource{
			{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: ref("cm-from")}},
			{SecretRef: &v1.SecretEnvSource{LocalObjectReference: ref("sec-from")}},
		}}},
		Containers: []v1.Container{{Env: []v1.EnvVar{
			{Name: "A", Value: "1"},
			{Name: "B", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: ref("cm-vol")}}},
			{Name: "C", ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: ref("sec-env")}}},
		}}},
		EphemeralContainers: []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{Env: []v1.EnvVar{
			{Name: "D", ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: ref("cm-eph")}}},
		}}}},
	}}
	cms, secs := References(p)
	if want := []string{"cm-vol", "cm-proj", "cm-from", "cm-eph"}; !slices.Equal(cms, want) {
		t.Errorf("configMaps = %v", cms)
	}
	if want := []string{"pull", "sec-vol", "sec-proj", "sec-csi", "sec-from", "sec-env"}; !slices.Equal(secs, want) {
		t.Errorf("secrets = %v", secs)
	}
}

// A list after the first is accepted even with an older version: the API server's store has been
// restored.
func TestRestoredStore(t *testing.T) {
	m, err := New(Config{Client: newAPI().Clientset})
	testutil.Must(t, err)
	it := newItem(key{kindConfigMap, "ns", "c"})
	s := &store{it: it, m: m, immutable: func() {}}
	value := func() string { return it.read().(*v1.ConfigMap).Data["k"] }
	it.put(m, configMap("c", "10", map[string]string{"k": "new"}))
	if err := s.Replace([]any{configMap("c", "9", map[string]string{"k": "lagging"})}, "9"); err != nil || value() != "new" {
		t.Errorf("the first list, of a cache that lags: %q, %v", value(), err)
	}
	if err := s.Replace([]any{configMap("c", "5", map[string]string{"k": "restored"})}, "5"); err != nil || value() != "restored" {
		t.Errorf("a later list: %q, %v", value(), err)
	}
	if err := s.Update(configMap("c", "6", map[string]string{"k": "edited"})); err != nil || value() != "edited" {
		t.Errorf("an update after it: %q, %v", value(), err)
	}
}
