package main

import (
	"bytes"
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
)

// someHosts behaves as the API server with a Bowline: a deleted Host has a step of its
// removal told with each list, and goes at the third; one that is stuck only by a detach.
type someHosts struct {
	items   []v1alpha1.Host
	looks   map[string]int
	stuck   string
	fault   error // of the next list
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
				reason, message = "Blocked", "the machine cannot be driven"
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
	clear := func(t *testing.T, s *someHosts, c clearing, limit time.Duration) (string, error) {
		t.Helper()
		var out bytes.Buffer
		c.hosts, c.out, c.pause = s, &out, time.Second
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		defer cancel()
		err := c.run(ctx)
		return out.String(), err
	}
	t.Run("all go", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSomeHosts("a", "b")
			s.fault = errors.New("the API server is away")
			out, err := clear(t, s, clearing{}, time.Minute)
			if err != nil || len(s.items) != 0 || !slices.Equal(s.deleted, []string{"a", "b"}) || s.patched != nil {
				t.Fatalf("err %v, left %d, deleted %v, patched %v", err, len(s.items), s.deleted, s.patched)
			}
			if !strings.Contains(out, "It is tried again: list the Hosts: the API server is away") || strings.Count(out, "b: Draining: 2 pods are ending\n") != 1 {
				t.Errorf("it said\n%s", out)
			}
		})
	})
	t.Run("some stay", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := newSomeHosts("a", "b", "c")
			s.items[2].Labels["of"] = "somebody"
			if _, err := clear(t, s, clearing{selector: "of=chart", except: []string{"a"}}, time.Minute); err != nil {
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
			_, err := clear(t, s, clearing{}, time.Minute)
			if err == nil || !strings.Contains(err.Error(), "the Host b is not gone: Blocked: the machine cannot be driven") || strings.Contains(err.Error(), "Host a") {
				t.Fatalf("err = %v", err)
			}
			// The way out that the error names, of what is being removed already.
			if _, err := clear(t, s, clearing{detach: true}, time.Minute); err != nil || !slices.Equal(s.patched, []string{"b"}) {
				t.Errorf("err %v, patched %v", err, s.patched)
			}
		})
	})
	t.Run("no right", func(t *testing.T) {
		s := newSomeHosts("a")
		s.fault = apierrors.NewForbidden(v1alpha1.GroupVersion.WithResource("hosts").GroupResource(), "", errors.New("no rule"))
		if _, err := clear(t, s, clearing{}, time.Minute); !apierrors.IsForbidden(err) {
			t.Errorf("err = %v: it is told at once", err)
		}
	})
}

func TestDropLeases(t *testing.T) {
	client := fake.NewClientset()
	for name, labels := range map[string]map[string]string{
		"bowline-host-box-1": {replica.KindLabel: "host"}, "bowline-replica-one": {replica.KindLabel: "replica"}, "another": nil,
	} {
		_, err := client.CoordinationV1().Leases("bowline").Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := dropLeases(t.Context(), client.CoordinationV1().Leases("bowline"), &out); err != nil {
		t.Fatal(err)
	}
	left, err := client.CoordinationV1().Leases("bowline").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(left.Items) != 1 || left.Items[0].Name != "another" || strings.Count(out.String(), "is deleted") != 2 {
		t.Errorf("left %v, %v; said %q", left.Items, err, out.String())
	}
}

// host clear deletes every Host of a cluster: it is asked for at a terminal, or by --yes.
func TestHostClearAsks(t *testing.T) {
	a := &hostAPI{hosts: map[string]*v1alpha1.Host{}}
	way := a.serve(t)
	for _, name := range []string{"box-1", "box-2"} {
		h := &v1alpha1.Host{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		h.Spec.Endpoint = "ssh://root@" + name + "/s"
		a.hosts[name] = h
	}
	clear := func(args ...string) (string, string, int) {
		return typed(t, append(append([]string{"host", "clear"}, args...), way...)...)
	}
	out, errOut, status := clear()
	if status != 1 || len(a.hosts) != 2 || !strings.Contains(errOut, "nothing was deleted") || !strings.Contains(errOut, "--yes") {
		t.Errorf("unasked: status %d, %d Hosts are left, %q", status, len(a.hosts), errOut)
	}
	for _, line := range []string{"  box-1 (drain): ssh://root@box-1/s\n", "  box-2 (drain): "} {
		if !strings.Contains(out, line) {
			t.Errorf("it does not list %q: %q", line, out)
		}
	}
	if out, _, _ := clear("--detach", "--except", "box-1"); strings.Contains(out, "box-1") || !strings.Contains(out, "  box-2 (detach): ") {
		t.Errorf("some: %q", out)
	}
	if out, errOut, status := clear("--yes"); status != 0 || len(a.hosts) != 0 {
		t.Errorf("--yes: status %d, %d Hosts are left, %q %q", status, len(a.hosts), out, errOut)
	}
	if out, errOut, status := clear(); status != 0 {
		t.Errorf("of none: status %d, %q %q", status, out, errOut)
	}
	a.without = true
	for _, args := range [][]string{nil, {"--yes"}} {
		if out, errOut, status := clear(args...); status != 0 || strings.Contains(out, "tried again") {
			t.Errorf("%v, in a cluster without the resource: status %d, %q %q", args, status, out, errOut)
		}
	}
}

// At a terminal, no is no.
func TestHostClearConfirm(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "n\n": false, "\n": false, "": false} {
		var out bytes.Buffer
		who := newPerson(nil, &out, false)
		who.answers(strings.NewReader(answer))
		c := clearing{hosts: newSomeHosts("a"), out: &out}
		if err := c.confirm(t.Context(), who); (err == nil) != want || !strings.Contains(out.String(), "Delete them? [y/N] ") {
			t.Errorf("%q: %v, %q", answer, err, out.String())
		}
	}
}

// A Host that is made after the question was answered stays: the person did not see it.
func TestHostClearDeletesWhatWasAgreedTo(t *testing.T) {
	for _, before := range [][]string{{"a"}, {}} {
		synctest.Test(t, func(t *testing.T) {
			s := newSomeHosts(before...)
			var out bytes.Buffer
			who := newPerson(nil, &out, false)
			who.answers(strings.NewReader("y\n"))
			c := clearing{hosts: s, out: &out, pause: time.Second}
			if err := c.confirm(t.Context(), who); err != nil {
				t.Fatal(err)
			}
			s.items = append(s.items, newSomeHosts("made-meanwhile").items...)
			if err := c.run(t.Context()); err != nil || !slices.Equal(s.deleted, before) {
				t.Errorf("deleted %v of %v: %v", s.deleted, before, err)
			}
		})
	}
}
