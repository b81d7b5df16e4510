package owner

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/bowline-k8s/bowline/hint"
)

var (
	self      = Identity{"c1", "n1"}
	elsewhere = Identity{"c2", "n1"}
	neighbour = Identity{"c1", "n2"}
)

func record(i Identity) *Record {
	return &Record{Identity: i, Instance: "i", PID: 7, StartedAt: time.Unix(0, 0), Version: "v"}
}

// TestDecideEverything enumerates locks × owner files × sets of sandboxes × permission, and
// compares with rules that are written down one by one.
func TestDecideEverything(t *testing.T) {
	locks := []*Locked{nil, {Path: "/l"}, {Path: "/l", Holder: record(self)}, {Path: "/l", Holder: record(elsewhere)}}
	type file struct {
		record *Record
		err    error
	}
	files := []file{{}, {record: record(self)}, {record: record(elsewhere)}, {record: record(neighbour)},
		{record: record(Identity{"c2", "n2"})}, {err: errors.New("garbage")}}
	kinds := []Sandbox{
		{ID: "0", Pod: "a/ours", Stamp: self.Stamp(), Kubelet: true, Ready: true},
		{ID: "1", Pod: "a/ours-dead", Stamp: self.Stamp(), Kubelet: true},
		{ID: "2", Pod: "a/cluster", Stamp: elsewhere.Stamp(), Kubelet: true, Ready: true},
		{ID: "3", Pod: "a/cluster-dead", Stamp: elsewhere.Stamp(), Kubelet: true},
		{ID: "4", Pod: "a/node", Stamp: neighbour.Stamp(), Kubelet: true, Ready: true},
		{ID: "5", Pod: "a/odd", Stamp: "odd", Ready: true},
		{ID: "6", Pod: "a/kubelet", Kubelet: true, Ready: true},
		{ID: "7", Pod: "a/kubelet-dead", Kubelet: true},
		{ID: "8", Pod: "a/plain", Ready: true},
		{ID: "9", Pod: "a/plain-dead"},
	}
	count := map[Kind]int{}
	for _, l := range locks {
		for _, f := range files {
			for set := range 1 << len(kinds) {
				for _, allow := range []bool{false, true} {
					e := Evidence{Self: self, AllowForeign: allow, Locked: l, FilePath: "/f", File: f.record, FileErr: f.err}
					has := func(ids ...int) bool {
						for _, id := range ids {
							if set&(1<<id) != 0 {
								return true
							}
						}
						return false
					}
					ours, foreign := 0, 0
					for i, s := range kinds {
						if has(i) {
							e.Sandboxes = append(e.Sandboxes, s)
							if i < 2 {
								ours++
							} else {
								foreign++
							}
						}
					}
					want := Accepted
					if has(6) && !allow {
						want = KubeletManages
					}
					if has(2, 3, 4, 5) {
						want = OtherSandbox
					}
					if f.record != nil && f.record.NodeName == "n2" {
						want = OtherNode
					}
					if f.record != nil && f.record.ClusterUID == "c2" {
						want = OtherCluster
					}
					if f.err != nil && (ours == 0 || has(2, 3, 4, 5)) {
						want = FileUnclear
					}
					if l != nil {
						want = HeldByOther
					}
					d := Decide(e)
					count[d.Kind]++
					if d.Kind != want || d.Ours != ours || d.Foreign != foreign {
						t.Fatalf("%+v\ndecided %+v, want %s, %d ours, %d foreign", e, d, want, ours, foreign)
					}
					if (d.Problem == "") != (want == Accepted) || (d.Fix == "") != (want == Accepted) || strings.Contains(d.Problem+d.Fix, "\n") {
						t.Fatalf("%s says %q and %q", d.Kind, d.Problem, d.Fix)
					}
					// The order of the runtime's list does not matter.
					for i, j := 0, len(e.Sandboxes)-1; i < j; i, j = i+1, j-1 {
						e.Sandboxes[i], e.Sandboxes[j] = e.Sandboxes[j], e.Sandboxes[i]
					}
					if again := Decide(e); again != d {
						t.Fatalf("in another order: %+v, not %+v", again, d)
					}
				}
			}
		}
	}
	for k := range kindNames {
		if count[Kind(k)] == 0 && Kind(k) != FileNewer { // see TestRefusalLeavesNoTrace
			t.Errorf("%s never occurred", Kind(k))
		}
	}
}

// TestSentences: each sentence says who the owner is, and what to do.
func TestSentences(t *testing.T) {
	kubelet := Sandbox{ID: "1", Pod: "kube-system/dns", Kubelet: true, Ready: true}
	other := Sandbox{ID: "2", Pod: "default/web", Stamp: elsewhere.Stamp(), Kubelet: true}
	for _, c := range []struct {
		e    Evidence
		want string
	}{
		{Evidence{Locked: &Locked{Path: "/r/owner.lock", Holder: record(elsewhere)}},
			`another Bowline manages this host (/r/owner.lock): node "n1" of cluster c2, instance i, pid 7, running since 1970-01-01T00:00:00Z. Stop it, or use another host`},
		{Evidence{Locked: &Locked{Path: "/l"}},
			`another process manages this host: it holds the lock /l without a name. Find it with "fuser /l", and stop it`},
		{Evidence{FileErr: errors.New("bad")},
			`cannot parse the owner file /f (bad). If no other Bowline uses this host, remove it`},
		{Evidence{File: record(elsewhere)},
			`this host is node "n1" of cluster c2 (owner file /f), but the kubeconfig is for cluster c1. Use the kubeconfig of that cluster, or remove the file if that cluster no longer uses the host`},
		{Evidence{File: record(neighbour)},
			`this host is node "n2" of cluster c1 (owner file /f), not node "n1". Use that nodeName, or remove the file once that node's pods are gone`},
		{Evidence{Sandboxes: []Sandbox{other}},
			`the runtime has 1 pod (default/web) of node "n1" of cluster c2. Start Bowline as that node, or remove them`},
		{Evidence{Sandboxes: []Sandbox{kubelet, {ID: "3", Pod: "default/a", Kubelet: true, Ready: true}}},
			`the runtime runs 2 pods (such as default/a) of another program, probably a kubelet. Drain that node and stop its kubelet, or set allowForeignPods to run beside them`},
	} {
		c.e.Self, c.e.FilePath = self, "/f"
		if got := hint.Text(&RefusedError{Decide(c.e)}); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
	if got := parseStamp("odd"); got != `owner "odd"` {
		t.Errorf("an odd stamp is called %s", got)
	}
}

func TestRecord(t *testing.T) {
	want := *record(self)
	got, err := ParseRecord(want.bytes())
	if err != nil || !got.StartedAt.Equal(want.StartedAt) || got.Identity != self || got.PID != 7 || got.Version != "v" || got.Instance != "i" {
		t.Errorf("%+v, %v", got, err)
	}
	for _, empty := range []string{"", " \n"} {
		if r, err := ParseRecord([]byte(empty)); r != nil || err != nil {
			t.Errorf("%q: %v, %v", empty, r, err)
		}
	}
	for _, bad := range []string{"x", "{}", `{"clusterUID":"a"}`, "[]", "null"} {
		if r, err := ParseRecord([]byte(bad)); err == nil {
			t.Errorf("%q was taken as %+v", bad, r)
		}
	}
	if fmt.Sprint(Accepted, KubeletManages, Kind(99)) != "Accepted KubeletManages Invalid" {
		t.Error("names of kinds")
	}
}
