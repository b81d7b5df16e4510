package node

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/tools/record"
)

// TestHostWarnings: what a kubelet warns of has its event when the node starts with it or gets it, and
// again only after it was gone.
func TestHostWarnings(t *testing.T) {
	swapOn := func(s *snapshot) { s.facts.Swaps, s.facts.KernelVersion = []string{"/dev/sdb"}, "5.15.0" }
	long := func(s *snapshot) { s.resolv = []byte("search " + strings.Repeat("a.example ", 30)) }
	for name, c := range map[string]struct {
		changes []func(*snapshot) // the first one is at the start
		want    []string          // the beginnings of the events
	}{
		"nothing":    {changes: []func(*snapshot){func(*snapshot) {}, func(*snapshot) {}}},
		"cgroup v1":  {changes: []func(*snapshot){func(s *snapshot) { s.facts.CgroupVersion = 1 }}, want: []string{"Warning CgroupV1 the host has cgroup v1, "}},
		"swap":       {changes: []func(*snapshot){func(*snapshot) {}, swapOn, swapOn}, want: []string{"Warning PossibleMemoryBackedVolumesOnDisk the host has swap, "}},
		"new kernel": {changes: []func(*snapshot){func(s *snapshot) { swapOn(s); s.facts.KernelVersion = "6.8.0" }}},
		"resolv.conf": {changes: []func(*snapshot){long, long, func(*snapshot) {}, long}, want: []string{
			"Warning CheckLimitsForResolvConf /etc/resolv.conf has more than 29 search domains, and pods get no more than these",
			"Warning CheckLimitsForResolvConf /etc/resolv.conf has more than 29 search domains, and pods get no more than these"}},
	} {
		t.Run(name, func(t *testing.T) {
			n, _, made := followed(t)
			recorder := record.NewFakeRecorder(10)
			n.recorder = recorder
			var last *snapshot
			for _, change := range c.changes {
				next := made(change)
				if last == nil {
					n.warnOfHost(nil, next)
				} else {
					n.follow(last, next)
				}
				last = next
			}
			close(recorder.Events)
			var got []string
			for e := range recorder.Events {
				for _, prefix := range c.want {
					if strings.HasPrefix(e, prefix) {
						e = prefix
						break
					}
				}
				got = append(got, e)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Error(d)
			}
		})
	}
}
