package machine

import (
	"testing"

	"github.com/moby/sys/mountinfo"
)

func TestShared(t *testing.T) {
	for fsType, want := range map[string]bool{"nfs": true, "nfs4": true, "nfsd": false, "tmpfs": false, "": false} {
		if Shared(fsType) != want {
			t.Errorf("%q", fsType)
		}
	}
	for pair, want := range map[[2]string]bool{{"nfs", "nfs"}: true, {"nfs4", "nfs"}: true, {"nfs4", "nfs4"}: true, {"nfs", "nfs4"}: false, {"ext4", "nfs"}: false} {
		if SameType(pair[0], pair[1]) != want {
			t.Errorf("%q", pair)
		}
	}
	for want, options := range map[string][]string{"retry=0": nil, "ro,nfsvers=4,retry=0": {"ro", "nfsvers=4"}, "retry=2,hard": {"retry=2", "hard"}} {
		if got := ShareOptions(options); got != want {
			t.Errorf("%q: %q", options, got)
		}
	}
}

func TestTopMount(t *testing.T) {
	entries := []*mountinfo.Info{{Mountpoint: "/a", Source: "one"}, {Mountpoint: "/a/b", Source: "two"}, {Mountpoint: "/a", Source: "three"}}
	if top := TopMount(entries, "/a"); top == nil || top.Source != "three" {
		t.Errorf("%+v", top)
	}
	if top := TopMount(entries, "/b"); top != nil {
		t.Errorf("%+v", top)
	}
}
