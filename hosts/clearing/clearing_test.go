package clearing

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hosts/replica"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// someHosts is an API server with a running Bowline: each list shows a deleted Host one step of its
// removal, and it is gone at the third. The stuck one goes only with deletionPolicy Detach.
type someHosts struct {
	items   []v1alpha1.Host
	looks   map[string]int
	stuck   string
	fault   error // returned by the next list
	patched []string
	deleted []string
}

func (s *someHosts) List(_ context.Context, opts metav1.ListOptions) (*v1alpha1.HostList, error) {
	if err := s.fault; err != nil {
		s.fault = nil
		return nil, err
	}
	list := &v1alpha1.HostList{}
	s.items = slices.DeleteFunc(s.items, func(h v1alpha1.Host) bool {
		return s.looks[h.Name] >= 3 && (h.Name != s.stuck || h.Spec.DeletionPolicy == v1alpha1.DeletionDetach)
	})
	for i := range s.items {
		h := &s.items[i]
		if h.DeletionTimestamp != nil {
			s.looks[h.Name]++
			reason, message := "Draining", "2 pods are ending"
			if h.Name == s.stuck {
				reason, message = "Blocked", "the host cannot be managed"
			}
			h.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: reason, Message: message}}
		}
		if opts.LabelSelector == "" || h.Labels["of"] == strings.TrimPrefix(opts.LabelSelector, "of=") {
			list.Items = append(list.Items, *h.DeepCopy())
		}
	}
	return list, nil
}

func (s *someHosts) Patch(_ context.Context, name string, body []byte) error {
	s.patched = append(s.patched, name)
	for i := range s.items {
		if s.items[i].Name == name {
			return json.Unmarshal(body, &s.items[i])
		}
	}
	return errors.New("no such Host")
}

func (s *someHosts) Delete(_ context.Context, name string, opts metav1.DeleteOptions) error {
	s.deleted = append(s.deleted, name)
	for i := range s.items {
		if h := &s.items[i]; h.Name == name && h.UID == *opts.Preconditions.UID {
			h.DeletionTimestamp = &metav1.Time{Time: time.Now()}
			return nil
		}
	}
	return apierrors.NewNotFound(v1alpha1.GroupVersion.WithResource("hosts").GroupResource(), name)
}

func newSomeHosts(names ...string) *someHosts {
	s := &someHosts{looks: map[string]int{}}
	for _, name := range names {
		h := v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"of": "chart"}}}
		h.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "NodeReady"}}
		s.items = append(s.items, h)
	}
	return s
}

func TestHostClear(t *testing.T) {
	clear := func(t *testing.T, s *someHosts, c Clearing, limit time.Duration) ([]string, error) {
		t.Helper()
		var seen []string
		c.Hosts, c.Pause = s, time.Second
		c.Report = func(c Change) {
			if c.Err != nil {
				seen = append(seen, "error: "+c.Err.Error())
				return
			}
			seen = append(seen, c.Host+": "+c.Now)
		}
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		err := c.Run(ctx)
		return seen, err
	}
	t.Run("all go", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSomeHosts("a", "b")
			s.fault = errors.New("the API server is away")
			seen, err := clear(t, s, Clearing{}, time.Minute)
			if err != nil || len(s.items) != 0 || !slices.Equal(s.deleted, []string{"a", "b"}) || s.patched != nil {
				t.Fatalf("err %v, left %d, deleted %v, patched %v", err, len(s.items), s.deleted, s.patched)
			}
			count := map[string]int{}
			for _, line := range seen {
				count[line]++
			}
			if count["error: list the Hosts: the API server is away"] != 1 || count["b: Draining: 2 pods are ending"] != 1 {
				t.Errorf("it reported %q", seen)
			}
		})
	})
	t.Run("some stay", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSomeHosts("a", "b", "c")
			s.items[2].Labels["of"] = "somebody"
			if _, err := clear(t, s, Clearing{Selector: "of=chart", Except: []string{"a"}}, time.Minute); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(s.deleted, []string{"b"}) {
				t.Errorf("deleted %v", s.deleted)
			}
		})
	})
	t.Run("one is stuck", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSomeHosts("a", "b")
			s.stuck = "b"
			_, err := clear(t, s, Clearing{}, time.Minute)
			if err == nil || !strings.Contains(err.Error(), "the Host b is not gone: Blocked: the host cannot be managed") || strings.Contains(err.Error(), "Host a") {
				t.Fatalf("err = %v", err)
			}
			// The error suggests --detach, which also works for a Host that is already being
			// deleted.
			if _, err := clear(t, s, Clearing{Detach: true}, time.Minute); err != nil || !slices.Equal(s.patched, []string{"b"}) {
				t.Errorf("err %v, patched %v", err, s.patched)
			}
		})
	})
	t.Run("no right", func(t *testing.T) {
		s := newSomeHosts("a")
		s.fault = apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("hosts").GroupResource(), "", errors.New("no rule"))
		if _, err := clear(t, s, Clearing{}, time.Minute); !apierrors.IsForbidden(err) {
			t.Errorf("err = %v: it is reported at once", err)
		}
	})
}

func TestDropLeases(t *testing.T) {
	client := fake.NewClientset()
	for name, labels := range map[string]map[string]string{
		"bowline-host-box-1": {replica.KindLabel: "host"}, "bowline-replica-one": {replica.KindLabel: "replica"}, "another": nil,
	} {
		_, err := client.CoordinationV1().Leases("bowline").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
		testutil.Must(t, err)
	}
	dropped, err := DropLeases(t.Context(), client.CoordinationV1().Leases("bowline"))
	testutil.Must(t, err)
	left, err := client.CoordinationV1().Leases("bowline").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 1 || left.Items[0].Name != "another" || len(dropped) != 2 {
		t.Errorf("left %v, %v; dropped %q", left.Items, err, dropped)
	}
}

// Without a yes nothing is agreed to.
func TestHostClearConfirm(t *testing.T) {
	for _, want := range []error{nil, errors.New("no")} {
		var asked []Due
		c := Clearing{Hosts: newSomeHosts("a")}
		err := c.Confirm(t.Context(), func(_ context.Context, all []Due) error { asked = all; return want })
		if err != want || !slices.Equal(asked, []Due{{Name: "a", Policy: v1alpha1.DeletionDrain}}) || (len(c.agreed) == 1) != (want == nil) {
			t.Errorf("%v: %v, asked about %v, agreed to %v", want, err, asked, c.agreed)
		}
	}
}

// A Host that is created after the answer stays: the user did not see it.
func TestHostClearDeletesWhatWasAgreedTo(t *testing.T) {
	for _, before := range [][]string{{"a"}, {}} {
		synctest.Test(t, func(t *testing.T) {
			s := newSomeHosts(before...)
			c := Clearing{Hosts: s, Pause: time.Second}
			testutil.Must(t, c.Confirm(t.Context(), func(context.Context, []Due) error { return nil }))
			s.items = append(s.items, newSomeHosts("made-meanwhile").items...)
			if err := c.Run(t.Context()); err != nil || !slices.Equal(s.deleted, before) {
				t.Errorf("deleted %v of %v: %v", s.deleted, before, err)
			}
		})
	}
}
