package release

import (
	"slices"
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/test/corpus"
)

func FuzzParseListing(f *testing.F) {
	f.Add("process\tbowline run\nmount\t/var/lib/kubelet\n")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		l := parseListing(s)
		named := 0
		for _, names := range l {
			for _, n := range names {
				named += len(n)
			}
		}
		if named > len(s) {
			t.Errorf("%d bytes of names of %d", named, len(s))
		}
		if changes := Compare(l, l); len(l) > 0 {
			for _, c := range changes {
				if len(c.Gone)+len(c.New) > 0 {
					t.Errorf("a listing differs from itself: %+v", c)
				}
			}
		}
	})
}

func TestCompare(t *testing.T) {
	before := parseListing("mounts\t/a\nmounts\t/b\nmounts\t/b\nnetwork links\tlo\nodd\tx\n")
	after := parseListing("mounts\t/a\nmounts\t/b\nmounts\t/c d\nnetwork links\tlo\n")
	said := Text(Compare(before, after))
	for _, w := range []string{"mounts                         3       3\n", "  - /b\n", "  + /c d\n", "network links                  1       1\n"} {
		if !strings.Contains(said, w) {
			t.Errorf("%q is not in\n%s", w, said)
		}
	}
	if strings.Contains(said, "odd") || strings.Contains(said, "lo\n") {
		t.Errorf("too much in\n%s", said)
	}
}

func TestStays(t *testing.T) {
	l := Listing{
		KindLinks:       {"bowline0", "bowline01", "eth0"},
		KindRules:       {`iptables: -A POSTROUTING -m comment --comment "id: \"box-1\""`, "iptables: -P INPUT ACCEPT"},
		KindCgroups:     {"/sys/fs/cgroup/kubepods.slice/kubepods-poda_b.slice", "/sys/fs/cgroup/kubepods.slice"},
		KindDirectories: {"/root/bowline", "/root/bowline/owner", "/root/bowlines", "/var/log/pods/ns_n_a-b"},
		KindSandboxes:   {"ns/n box-1", "ns/n box-2"},
	}
	got := Stays(l, Ours{IDs: []string{"box-1"}, Pods: []string{"a-b"}, Paths: []string{"/root/bowline"}, Bridges: []string{"bowline0"}})
	want := []string{
		KindSandboxes + ": ns/n box-1", KindLinks + ": bowline0", KindRules + ": " + l[KindRules][0], KindCgroups + ": " + l[KindCgroups][0],
		KindDirectories + ": /root/bowline", KindDirectories + ": /root/bowline/owner", KindDirectories + ": /var/log/pods/ns_n_a-b",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s", strings.Join(got, "\n"))
	}
}
