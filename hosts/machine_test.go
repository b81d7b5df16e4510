package hosts

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

const (
	idA, idB   = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
	keyA, keyB = "SHA256:aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "SHA256:bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// TestAnother: which found machine counts as another one than the recorded.
func TestAnother(t *testing.T) {
	m := func(id, key string) v1alpha1.MachineStatus {
		return v1alpha1.MachineStatus{MachineID: id, HostKey: key}
	}
	for name, c := range map[string]struct {
		recorded, found v1alpha1.MachineStatus
		another         bool
	}{
		"the same":                               {m(idA, keyA), m(idA, keyA), false},
		"the same, near":                         {m(idA, ""), m(idA, ""), false},
		"another key, the machine-id copied":     {m(idA, keyA), m(idA, keyB), true},
		"the same key, another machine-id":       {m(idA, keyA), m(idB, keyA), true},
		"the machine-id is gone":                 {m(idA, keyA), m("", keyA), true},
		"none was recorded, and there is one":    {m("", keyA), m(idA, keyA), false},
		"none was recorded, and another key":     {m("", keyA), m("", keyB), true},
		"near, then far with the machine-id":     {m(idA, ""), m(idA, keyB), true},
		"near without a machine-id, then far":    {m("", ""), m("", keyB), true},
		"far, then near":                         {m(idA, keyA), m(idA, ""), true},
		"far without a machine-id, then near":    {m("", keyA), m(idA, ""), true},
		"near without a machine-id, still there": {m("", ""), m("", ""), false},
	} {
		if got := another(c.recorded, c.found); got != c.another {
			t.Errorf("%s: another is %v", name, got)
		}
	}
}

func TestMachine(t *testing.T) {
	for id, want := range map[string]string{
		idA: idA, strings.ToUpper(idA): idA, "": "", "uninitialized": "", idA + "0": "", idA[1:]: "", idA + "\n": "", strings.Repeat("x", 1<<20): "",
	} {
		if got := Machine(id, keyA); got.MachineID != want || got.HostKey != keyA {
			t.Errorf("%.40q is taken as %+v", id, got)
		}
	}
}

// TestAnotherLogin: the key and the machine-id are the same for every login of a machine, so user
// and socket decide.
func TestAnotherLogin(t *testing.T) {
	m := func(user, socket string) v1alpha1.MachineStatus {
		return v1alpha1.MachineStatus{MachineID: idA, HostKey: keyA, User: user, Socket: socket}
	}
	const cri = "/run/cri.sock"
	for name, c := range map[string]struct {
		recorded, found v1alpha1.MachineStatus
		another         bool
	}{
		"the same":                        {m("root", cri), m("root", cri), false},
		"another user":                    {m("root", cri), m("mallory", cri), true},
		"another socket":                  {m("root", cri), m("root", "/home/mallory/x.sock"), true},
		"the same socket by another name": {m("root", cri), m("root", "/run/../run/cri.sock"), true},
		"recorded by an older Bowline":    {m("", ""), m("root", cri), false},
		"the user alone is recorded":      {m("root", ""), m("root", cri), false},
		"near, another socket":            {m("", cri), m("", "/tmp/x.sock"), true},
		"no user any more":                {m("root", cri), m("", cri), true},
		"no socket any more":              {m("root", cri), m("root", ""), true},
		"another user, the socket is new": {m("root", ""), m("mallory", cri), true},
		"another socket, the user is new": {m("", cri), m("root", "/tmp/x.sock"), true},
	} {
		if got := another(c.recorded, c.found); got != c.another {
			t.Errorf("%s: another is %v", name, got)
		}
	}
}

// TestLoginIsRecorded: the login is recorded with the machine, or later for a machine that an older
// Bowline recorded. From then on another user or socket is refused until it is accepted.
func TestLoginIsRecorded(t *testing.T) {
	for name, old := range map[string]*v1alpha1.MachineStatus{"new": nil, "of an older Bowline": {MachineID: idA, HostKey: keyA}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, secret("box"))
			w.api.change("box", same)
			after(5 * time.Second)
			w.let("box", old)
			first := v1alpha1.MachineStatus{MachineID: idA, HostKey: keyA, User: "root", Socket: "/run/cri.sock"}
			if tries := 0; old != nil { // a concurrent change of the Host must not prevent it
				w.api.beforeRecord = func(name string) {
					if tries++; tries == 1 {
						w.api.setMachine(name, old)
					}
				}
			}
			if err := w.source.Recognize(t.Context(), "box", first); err != nil {
				t.Fatal(name, err)
			}
			w.api.beforeRecord = nil
			synctest.Wait()
			if m := w.api.get("box").Status.Machine; m == nil || *m != first {
				t.Fatalf("%s: recorded is %+v", name, m)
			}
			other := first
			other.User, other.Socket = "mallory", "/home/mallory/x.sock"
			var refused *OtherMachineError
			if err := w.source.Recognize(t.Context(), "box", other); !errors.As(err, &refused) {
				t.Fatalf("%s: another login: %v", name, err)
			}
			w.let("box", &other)
			if err := w.source.Recognize(t.Context(), "box", other); err != nil {
				t.Errorf("%s: a login that was let in: %v", name, err)
			}
			if err := w.source.Recognize(t.Context(), "box", first); !errors.As(err, &refused) {
				t.Errorf("%s: the login of before: %v", name, err)
			}
		})
	}
}

// TestLoginOfAnOlderRecordOfAnotherMachine: the machine is refused, and nothing is added to the
// record.
func TestLoginOfAnOlderRecordOfAnotherMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"))
		w.api.change("box", same)
		after(5 * time.Second)
		old := Machine(idA, keyA)
		w.let("box", &old)
		found := v1alpha1.MachineStatus{MachineID: idA, HostKey: keyB, User: "root", Socket: "/run/cri.sock"}
		var refused *OtherMachineError
		if err := w.source.Recognize(t.Context(), "box", found); !errors.As(err, &refused) {
			t.Errorf("another machine: %v", err)
		}
		if m := w.api.get("box").Status.Machine; m == nil || *m != old {
			t.Errorf("recorded is %+v", m)
		}
	})
}

// TestOtherMachineError: one sentence, and a hint with the patch that accepts the machine that was found.
func TestOtherMachineError(t *testing.T) {
	for _, c := range []struct {
		found v1alpha1.MachineStatus
		want  []string
	}{
		{Machine(idB, keyB), []string{"(the machine-id " + idB + " and the SSH host key " + keyB + ", recorded the machine-id " + idA + " and the SSH host key " + keyA,
			`kubectl patch host box --subresource=status --type=merge -p '{"status":{"machine":{"machineID":"` + idB + `","hostKey":"` + keyB + `","user":null,"socket":null}}}'`}},
		{Machine("", ""), []string{"(no machine-id and no SSH host key,", `-p '{"status":{"machine":{"machineID":null,"hostKey":null,"user":null,"socket":null}}}'`}},
		// Anyone who may edit the Host chooses these; an administrator pastes them into a shell.
		{v1alpha1.MachineStatus{MachineID: idA, HostKey: keyA, User: "m", Socket: "/x'; reboot; '\n\x1b[2J"}, []string{
			`and the SSH host key ` + keyA + ` and the user "m" and the socket "/x'; reboot; '\n\x1b[2J", recorded `,
			`"user":"m","socket":"/x\u0027; reboot; \u0027\n\u001b[2J"}}}'`}},
	} {
		text := hint.Text(&OtherMachineError{"box", Machine(idA, keyA), c.found})
		for _, want := range c.want {
			if !strings.Contains(text, want) || strings.Contains(text, "\n") {
				t.Errorf("want %q in %q", want, text)
			}
		}
	}
}

// TestMachineIsRecorded: the first machine is recorded before it is managed, and its driver is not
// restarted for that. Another machine is refused with a condition and one event, until it is
// accepted.
func TestMachineIsRecorded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"))
		w.api.change("box", same)
		after(5 * time.Second)
		sets, before := w.sets, w.set["box"]
		first, other := Machine(idA, keyA), Machine(idB, keyB)
		testutil.Must(t, w.source.Recognize(t.Context(), "box", first))
		if m := w.api.get("box").Status.Machine; m == nil || *m != first {
			t.Fatalf("recorded is %+v", m)
		}
		after(5 * time.Second)
		w.manages("box")
		after(5 * time.Second)
		w.ready("box", ReasonNodeReady)
		if w.sets != sets || w.set["box"] != before {
			t.Error("the record has begun the driver again")
		}
		if m := w.api.get("box").Status.Machine; m == nil || *m != first {
			t.Errorf("the status that was written has the machine %+v", m)
		}
		writes := w.api.writes["box"]
		after(time.Hour)
		if now := w.api.writes["box"]; now != writes {
			t.Errorf("the status was written %d times in an hour of nothing", now-writes)
		}

		w.api.change("box", func(h *v1alpha1.Host) { h.Spec.Endpoint = "ssh://root@10.0.0.99/run/cri.sock" })
		after(5 * time.Second)
		err := w.source.Recognize(t.Context(), "box", other)
		var refused *OtherMachineError
		if !errors.As(err, &refused) || refused.Recorded != first || refused.Found != other {
			t.Fatalf("another machine: %v", err)
		}
		fail := func(r *Report) { *r = Report{Config: r.Config, Err: fmt.Errorf("box: %w", err)} }
		w.manages("box", fail)
		after(5 * time.Second)
		w.ready("box", ReasonOtherMachine, idB, keyB, idA, keyA)
		events := w.events(ReasonOtherMachine)
		if len(events) != 1 || events[0].Type != v1.EventTypeWarning || events[0].Reason != ReasonOtherMachine || events[0].InvolvedObject.Kind != "Host" ||
			events[0].InvolvedObject.Name != "box" || !strings.Contains(events[0].Message, keyB) {
			t.Fatalf("the events are %+v", events)
		}
		after(time.Hour)
		w.manages("box", fail)
		after(time.Hour)
		if n := len(w.events(ReasonOtherMachine)); n != 1 {
			t.Errorf("one refusal has %d events", n)
		}

		// Accepted by naming it, and by removing the record.
		w.let("box", &other)
		if err := w.source.Recognize(t.Context(), "box", other); err != nil {
			t.Errorf("a machine that was let in: %v", err)
		}
		if err := w.source.Recognize(t.Context(), "box", first); !errors.As(err, &refused) {
			t.Errorf("the machine of before, with another recorded: %v", err)
		}
		w.let("box", nil)
		if err := w.source.Recognize(t.Context(), "box", first); err != nil {
			t.Errorf("with no record: %v", err)
		}
		after(5 * time.Second)
		if m := w.api.get("box").Status.Machine; m == nil || *m != first {
			t.Errorf("recorded is %+v", m)
		}
	})
}

// TestMachineOfAnotherRecord: a record by another process counts even before the informer has it,
// and a concurrent change of the Host does not prevent recording.
func TestMachineOfAnotherRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"))
		w.api.change("box", same)
		after(5 * time.Second)
		first, tries := Machine(idA, keyA), 0
		w.api.beforeRecord = func(name string) {
			switch tries++; tries {
			case 1: // an unrelated change
				w.api.setMachine(name, nil)
			case 2:
				w.api.setMachine(name, &first)
			}
		}
		var refused *OtherMachineError
		if err := w.source.Recognize(t.Context(), "box", Machine(idB, keyB)); !errors.As(err, &refused) || tries != 2 {
			t.Errorf("after %d tries: %v", tries, err)
		}

		w.api.beforeRecord = func(name string) { w.api.setMachine(name, nil) }
		w.let("box", nil)
		if err := w.source.Recognize(t.Context(), "box", first); err == nil || errors.As(err, &refused) {
			t.Errorf("with a change before each try: %v", err)
		}
		if m := w.api.get("box").Status.Machine; m != nil {
			t.Errorf("recorded is %+v", m)
		}
		if err := w.source.Recognize(t.Context(), "none", first); err == nil || !strings.Contains(err.Error(), "none") {
			t.Errorf("of a Host that is not there: %v", err)
		}
	})
}

// TestMachineOfAnOlderCRD: if the API server prunes the record, machines are managed as before.
func TestMachineOfAnOlderCRD(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"))
		w.api.oldCRD = true
		w.api.change("box", same)
		after(5 * time.Second)
		for _, m := range []v1alpha1.MachineStatus{Machine(idA, keyA), Machine(idB, keyB)} {
			if err := w.source.Recognize(t.Context(), "box", m); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestLoginOfAnOlderCRD: if the API server prunes only the login, the machine is compared as
// before.
func TestLoginOfAnOlderCRD(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"))
		w.api.oldLogin = true
		w.api.change("box", same)
		after(5 * time.Second)
		found := Machine(idA, keyA)
		found.User, found.Socket = "root", "/run/cri.sock"
		for range 2 {
			if err := w.source.Recognize(t.Context(), "box", found); err != nil {
				t.Error(err)
			}
			synctest.Wait()
		}
		found.HostKey = keyB
		var refused *OtherMachineError
		if err := w.source.Recognize(t.Context(), "box", found); !errors.As(err, &refused) {
			t.Errorf("another machine: %v", err)
		}
	})
}

// TestEventIsForbidden: the account of an older chart may not write events. The condition is
// written all the same.
func TestEventIsForbidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, secret("box"))
		w.client.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, nil, errors.New("forbidden")
		})
		w.api.change("box", same)
		after(5 * time.Second)
		w.manages("box", func(r *Report) { *r = Report{Config: r.Config, Err: &OtherMachineError{Host: "box"}} })
		after(5 * time.Second)
		w.ready("box", ReasonOtherMachine)
	})
}

// let makes machine the recorded one, as someone with the right to change statuses does.
func (w *world) let(name string, machine *v1alpha1.MachineStatus) {
	w.api.mu.Lock()
	w.api.setMachine(name, machine)
	w.api.mu.Unlock()
	synctest.Wait()
}

// events returns the events on Hosts with this reason.
func (w *world) events(reason string) []v1.Event {
	w.t.Helper()
	list, err := w.client.CoreV1().Events(metav1.NamespaceDefault).List(w.t.Context(), metav1.ListOptions{})
	testutil.Must(w.t, err)
	return slices.DeleteFunc(list.Items, func(e v1.Event) bool { return e.Reason != reason })
}
