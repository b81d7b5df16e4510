package ssh

import (
	"strings"
	"testing"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestRights(t *testing.T) {
	for _, c := range []struct {
		name, said string
		sudo       bool
		fails      string // text of the error
	}{
		{"root", "uid 0\nsudo\nthere\nopens\ngroup root\n", false, ""},
		{"root without sudo, no socket", "uid 0\ngroup \n", false, ""},
		{"root behind a motd", "Welcome to box-1\nuid 0\ngroup root\n", false, ""},
		{"sudo, member of the group", "uid 1000\nsudo\nthere\nopens\ngroup containerd\n", true, ""},
		{"sudo, the socket is out of sight", "uid 1000\nsudo\ngroup \n", true, ""},
		{"sudo, not a member", "uid 1000\nsudo\nthere\ngroup containerd\n", false, `"usermod -aG containerd pi"`},
		{"sudo, which sees it too", "uid 1000\nsudo\nhidden\nthere\nopens\ngroup containerd\n", true, ""},
		{"sudo, the socket is root's", "uid 1000\nsudo\nthere\ngroup root\n", false, `"gid" under [grpc]`},
		{"member without sudo", "uid 1000\nthere\nopens\ngroup containerd\n", false, `"pi ALL=(root) NOPASSWD: ALL"`},
		{"nobody", "uid 65534\nthere\ngroup root\n", false, "log in as root"},
		{"no answer of ours", "This account is currently not available.\n", false, "not available"},
		{"nothing", "", false, "first request"},
	} {
		r, err := parseRights([]byte(c.said))
		var sudo bool
		if err == nil {
			sudo, err = r.decide("pi", "/run/containerd/containerd.sock")
		}
		if sudo != c.sudo || (err != nil) != (c.fails != "") || err != nil && !strings.Contains(err.Error()+"\n"+hint.Of(err), c.fails) {
			t.Errorf("%s: sudo %v, %v", c.name, sudo, err)
		}
	}
}

func FuzzParseRights(f *testing.F) {
	f.Add([]byte("uid 0\nsudo\ngroup root\n"))
	corpus.Add(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		if r, err := parseRights(data); err == nil && r.root && !strings.Contains(string(data), "uid 0") {
			t.Errorf("%q is root", data)
		}
	})
}
