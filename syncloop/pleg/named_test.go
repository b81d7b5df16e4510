package pleg

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/bowline-k8s/bowline/pod"
)

func seenPod(uid, podName string, seq uint64) pod.Observed {
	return pod.Observed{Ref: pod.Ref{Namespace: "ns", Name: podName, UID: types.UID(uid)}, Seq: seq, Sandboxes: []pod.Sandbox{{ID: "box-" + uid}}}
}

// TestNamed: the index of names has what Known has, after each way in which the cache changes.
func TestNamed(t *testing.T) {
	c := newCache()
	check := func(when string) {
		t.Helper()
		want := map[string][]types.UID{}
		for _, r := range c.Known() {
			want[r.Name] = append(want[r.Name], r.UID)
		}
		for _, podName := range []string{"", "web", "db", "none"} {
			var got []types.UID
			for _, r := range c.Named("ns", podName) {
				got = append(got, r.UID)
			}
			slices.Sort(got)
			slices.Sort(want[podName])
			if !slices.Equal(got, want[podName]) {
				t.Errorf("%s: Named has %v for %q, want %v", when, got, podName, want[podName])
			}
		}
		if got := c.Named("other", "web"); len(got) != 0 {
			t.Errorf("%s: another namespace has %v", when, got)
		}
	}
	c.put(seenPod("1", "web", 1))
	c.put(seenPod("2", "web", 2))
	c.put(seenPod("3", "db", 3))
	check("seen")
	c.put(seenPod("3", "web", 4))
	check("named otherwise")
	c.touch("3", 4, 5, time.Time{})
	c.staleOne(pod.Ref{Namespace: "ns", Name: "web", UID: "2"}, 6, "no answer")
	check("looked at again")
	gone := seenPod("1", "web", 7)
	gone.Sandboxes = nil
	c.put(gone)
	check("without remains")
	c.relisted(8, time.Time{}, map[types.UID]bool{"2": true, "4": true}, 0)
	check("relisted")
	c.put(seenPod("4", "db", 9))
	check("seen for the first time")
	c.relisted(10, time.Time{}, nil, 0)
	check("all gone")
	if len(c.named) != 0 {
		t.Errorf("the index keeps %v", c.named)
	}
}

// TestNamedCostsTheSame: a look-up copies nothing of the other pods.
func TestNamedCostsTheSame(t *testing.T) {
	c := newCache()
	for i := range 2000 {
		c.put(seenPod(fmt.Sprint(i), fmt.Sprint("pod-", i), 1))
	}
	cost := testing.Benchmark(func(b *testing.B) {
		for b.Loop() {
			c.Named("ns", "pod-7")
		}
	}).AllocedBytesPerOp()
	if one := int64(200); cost > one {
		t.Errorf("a look-up of one name among 2000 pods allocates %d bytes, want at most %d", cost, one)
	}
}
