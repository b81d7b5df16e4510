package syncloop

import (
	"fmt"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/host"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/syncloop/allocation"
	"github.com/bowline-k8s/bowline/syncloop/pleg"
	"github.com/bowline-k8s/bowline/syncloop/podconfig"
)

// unasked is a runtime and a host that a test does not ask.
type unasked struct {
	pleg.Runtime
	host.Host
}

// TestStaticPodsAreFoundByName: a static pod is compared only with the workers of its name. The
// workers of the other pods are nil here, so a walk over them would panic.
func TestStaticPodsAreFoundByName(t *testing.T) {
	sources := podconfig.New(podconfig.SourceFile)
	generator, err := pleg.New(pleg.Config{Runtime: unasked{}, Files: unasked{}, Owner: "us", IsNotFound: func(error) bool { return false }})
	testutil.Must(t, err)
	l := &Loop{cfg: Config{Sources: sources, PLEG: generator}, workers: map[types.UID]*worker{}, byName: map[fullName]map[types.UID]*worker{},
		allocation: allocation.New(allocation.Config{})}
	for i := range 5000 {
		l.workers[types.UID(fmt.Sprint("other-", i))] = nil
	}
	if begun := time.Now(); !l.Unchanged(begun) {
		t.Error("the loop has changed before it has a worker")
	}
	begin := func(uid, name string, static bool) *worker {
		w := newWorker(l, pod.Ref{Namespace: "ns", Name: name, UID: types.UID(uid)}, static)
		l.enter(w)
		return w
	}
	first, second, other := begin("1", "web", true), begin("2", "web", true), begin("3", "db", true)
	plain := begin("4", "web", false)
	sources.Replace(podconfig.SourceFile, []*v1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web", UID: "1"}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db", UID: "3"}},
	})
	for w, want := range map[*worker]types.UID{second: "1", other: ""} {
		if got := l.predecessor(w); got != want {
			t.Errorf("%s waits for %q, want %q", w.ref.UID, got, want)
		}
	}
	if got := l.predecessor(first); got != "2" { // no source has the second
		t.Errorf("the first waits for %q", got)
	}
	if !l.StaticPodEnding("ns", "web") || l.StaticPodEnding("ns", "db") || l.StaticPodEnding("ns", "none") {
		t.Error("the second pod of the name web is ending, and no other")
	}
	for _, w := range []*worker{first, second, plain, other} {
		_ = w.inbox.take()
		select {
		case <-w.inbox.notify:
		default:
		}
	}
	entered := time.Now()
	if l.Unchanged(time.Time{}) || !l.Unchanged(entered) {
		t.Error("the last change must be the last worker that entered")
	}
	l.leave(second)
	if l.Unchanged(entered) || !l.Unchanged(time.Now()) {
		t.Error("the last change must be the worker that left")
	}
	l.wakeSameName(second)
	for w, want := range map[*worker]int{first: 1, plain: 1, other: 0, second: 0} {
		if got := len(w.inbox.notify); got != want {
			t.Errorf("the worker of %s was woken %d times, want %d", w.ref.UID, got, want)
		}
	}
	if got := l.predecessor(first); got != "" {
		t.Errorf("alone, the first waits for %q", got)
	}
	l.leave(first)
	l.leave(plain)
	l.leave(other)
	if len(l.byName) != 0 || len(l.workers) != 5000 {
		t.Errorf("the loop keeps %v", l.byName)
	}
}
