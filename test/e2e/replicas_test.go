package e2e

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/labtest"
)

// TestReplicas: two processes share two machines through Host objects. One is killed, and the other
// adopts its machine; then a new one starts, and the other gets SIGTERM and hands over both. The
// pods are never affected, and the recorder in front of each runtime shows that no two processes
// change a machine in turns. The account has the rights of docs/hosts.md, and no others.
func TestReplicas(t *testing.T) {
	onlyLocal(t, "its hosts are always remote")
	parallel(t)
	const socket = "/run/recorded.sock"
	machines := []string{"host1", "host2"}
	p := newPooled(t, machines...)
	define(t, p.lab)
	objects := p.objectsOf(p.account("bowline", "host1-key, host2-key"))
	recorders := map[string]*recorder{}
	for _, m := range machines {
		h := p.lab.Host(m)
		recorders[m] = newRecorder(t, fmt.Sprintf("/proc/%d/root%s", h.PID, socket), h.OutsideSocket, nil)
		p.key(m)
		p.apply(p.objectOf(m, socket, m, m))
	}
	start := func(name string) *labtest.Bowline {
		file := filepath.Join(p.lab.Dir, "replica-"+name+".yaml")
		head := strings.TrimSuffix(p.lab.ConfigHead(), "hosts:\n")
		testutil.Must(t, os.WriteFile(file, []byte(head+objects+fmt.Sprintf("  replicas: {name: %s}\n", name)), 0o600))
		b := &labtest.Bowline{Lab: p.lab, Host: machines[0], Wire: p.wires[machines[0]], Config: file, Args: []string{"-v=2"},
			LogPath: filepath.Join(p.lab.Dir, "replica-"+name+".log")}
		testutil.Must(t, b.Start())
		t.Cleanup(b.Kill)
		p.bowline = b // its log is shown if a wait fails
		return b
	}
	leases := p.lab.Client.CoordinationV1().Leases("bowline")
	// driver returns the replica that holds a machine's Lease and manages the machine.
	driver := func(ctx context.Context, machine string) (string, error) {
		l, err := leases.Get(ctx, "bowline-host-"+machine, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		who := ptr.Deref(l.Spec.HolderIdentity, "")
		log, err := os.ReadFile(filepath.Join(p.lab.Dir, "replica-"+who+".log"))
		if err != nil || !manages(string(log), machine) {
			return "", fmt.Errorf("%s is with %q, which does not manage it yet: %v", machine, who, err)
		}
		return who, nil
	}
	// with waits until every machine is managed by one of the replicas and each replica has a
	// machine, and returns which.
	with := func(replicas ...string) map[string]string {
		t.Helper()
		has := map[string]string{}
		err := labtest.Until(t.Context(), patience, fmt.Sprintf("the machines are with %q", replicas), func(ctx context.Context) error {
			clear(has)
			for _, m := range machines {
				who, err := driver(ctx, m)
				if err != nil {
					return err
				}
				has[who] = m
			}
			if got := slices.Sorted(maps.Keys(has)); !slices.Equal(got, replicas) {
				return fmt.Errorf("they are with %q", got)
			}
			return nil
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, p.bowline.LogTail(6000))
		}
		return has
	}

	one := start("one")
	with("one")
	pods := map[string]*v1.Pod{}
	for _, m := range machines {
		p.ready(m, 110)
		pods[m] = p.pod("stays-on-"+m, m)
	}
	unharmed := func(when string) {
		t.Helper()
		for _, before := range pods {
			now, err := p.lab.PodReady(t.Context(), v1.NamespaceDefault, before.Name, patience)
			if err != nil {
				t.Fatalf("%s: %v\n%s", when, err, p.bowline.LogTail(6000))
			}
			same(t, before, now)
		}
	}

	began := time.Now()
	two := start("two")
	orphan := with("one", "two")["one"]
	t.Logf("a second replica has its share after %s, 30 s of which it waits", time.Since(began).Round(time.Millisecond))
	unharmed("after a move for the balance")

	one.Kill()
	began = time.Now()
	with("two")
	t.Logf("the machine of a replica that was killed is managed %s later", time.Since(began).Round(time.Millisecond))
	p.pod("after-the-kill", orphan)
	t.Logf("a new pod on it was Ready %s after the kill", time.Since(began).Round(time.Millisecond))
	unharmed("after the kill")

	start("three")
	testutil.Must(t, labtest.Until(t.Context(), patience, "the third replica lives", func(ctx context.Context) error {
		_, err := leases.Get(ctx, "bowline-replica-three", metav1.GetOptions{})
		return err
	}))
	began = time.Now()
	testutil.Must(t, syscall.Kill(two.PID(), syscall.SIGTERM))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	code, err := two.Wait(ctx)
	cancel()
	if err != nil || code != 0 {
		t.Errorf("told to end, the replica ended with %d, %v", code, err)
	}
	t.Logf("a replica has left %s after it was asked to", time.Since(began).Round(time.Millisecond))
	if _, err := leases.Get(t.Context(), "bowline-replica-two", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("its Lease: %v", err)
	}
	with("three")
	t.Logf("its machines are managed by another %s after it was asked to", time.Since(began).Round(time.Millisecond))
	for _, m := range machines {
		p.pod("at-the-end-on-"+m, m)
		p.reason(m, "NodeReady", "")
	}
	unharmed("at the end")

	for m, r := range recorders {
		drivers, calls := r.drivers()
		t.Logf("%s: %d changes by %q", m, calls, drivers)
		turns := map[string]int{}
		for _, by := range drivers {
			if turns[by]++; turns[by] == 2 {
				t.Errorf("%s: %s changed something after another had", m, by)
			}
		}
		if len(turns) < 2 {
			t.Errorf("%s: two replicas had it, and changes came by %q", m, drivers)
		}
	}
}

// manages reports whether a process's log shows that it has taken a machine since it last got it.
func manages(log, machine string) bool {
	given := strings.LastIndex(log, fmt.Sprintf("Acquired the host\" host=%q", machine))
	return given >= 0 && len(linesOf(log[given:], "Started managing the host", fmt.Sprintf("host=%q", machine))) > 0
}

// linesOf are the lines with all words.
func linesOf(log string, words ...string) (all []string) {
lines:
	for line := range strings.Lines(log) {
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		all = append(all, line)
	}
	return all
}
