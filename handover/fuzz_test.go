package handover

import (
	"testing"

	"github.com/bowline-k8s/bowline/test/corpus"
)

func FuzzParseRoutes(f *testing.F) {
	f.Add("Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\neth0\t00000000\t0100000A\t0003\t0\t0\t0\t00000000\t0\t0\t0\neth0\t0000000A\t00000000\t0001\t0\t0\t0\t000000FF\t0\t0\t0\n")
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, s string) {
		for _, r := range parseRoutes(s) {
			if !r.IsValid() || !r.Addr().Is4() {
				t.Errorf("the route %v", r)
			}
		}
	})
}

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
