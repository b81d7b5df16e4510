package prepare

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
