package lab

import (
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/lab/layout"
)

func TestRouteConflict(t *testing.T) {
	lab := layout.Lab{Index: 1}
	for _, test := range []struct{ routes, conflict string }{
		{"default via 192.0.2.1 dev eth0\n192.0.2.0/24 dev eth0 proto kernel scope link\n", ""},
		{"172.29.1.0/24 dev bowlab1 proto kernel\n10.65.1.0/24 via 172.29.1.11 dev bowlab1\n", ""},
		{"172.29.0.0/24 dev bowlab0 proto kernel\n10.64.1.0/24 via 172.29.0.11 dev bowlab0\n", ""},
		{"10.65.0.0/16 dev vpn0\n", "10.65.0.0/16"},
		{"10.0.0.0/8 via 192.0.2.9 dev eth0\n", "10.0.0.0/8"},
		{"172.29.1.7 dev tun0\n", "172.29.1.7/32"},
		{"blackhole 10.81.0.0/16\n", ""},
	} {
		err := routeConflict(lab, test.routes)
		switch {
		case test.conflict == "" && err != nil:
			t.Errorf("%q: %v", test.routes, err)
		case test.conflict != "" && (err == nil || !strings.Contains(err.Error(), test.conflict)):
			t.Errorf("%q: %v, want a word about %s", test.routes, err, test.conflict)
		}
	}
}
