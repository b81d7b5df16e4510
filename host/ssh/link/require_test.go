package link

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// TestRequiredHostKey: of two pinned keys the host must present the one that it had before, on
// either connection; another host with the other pinned key is refused.
func TestRequiredHostKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newLab(t)
		others := newKey(t)
		line := func(s ssh.Signer) string { return string(ssh.MarshalAuthorizedKey(s.PublicKey())) }
		own, other := signer(t, b.hostKey), signer(t, others)
		var err error
		b.target, err = endpoint.Resolve("ssh://root@10.0.0.7/run/cri.sock", endpoint.Options{
			Credentials: endpoint.Credentials{Key: privateKey(t, b.userKey)}, HostKeys: []string{line(own), line(other)},
		})
		testutil.Must(t, err)
		l := b.link(t)
		if key := l.State().HostKey; key != "" {
			t.Errorf("before the first connection the key is %q", key)
		}
		start(t, l)
		up(t, l)
		key := l.State().HostKey
		if key != ssh.FingerprintSHA256(own.PublicKey()) {
			t.Fatalf("the key is %q", key)
		}
		l.Require(key)

		// The bulk connection is made on first use: by then another host answers.
		another := &ssh.ServerConfig{PublicKeyCallback: b.server.PublicKeyCallback}
		another.AddHostKey(other)
		b.another.Store(another)
		if c, err := l.DialBulk(t.Context(), "unix", "/echo"); err == nil {
			c.Close()
			t.Error("the bulk connection was made to another machine")
		}
		b.wire(0).cut()
		until(t, l, false)
		time.Sleep(time.Minute)
		var refused *endpoint.HostKeyError
		if state := l.State(); state.Up || !errors.As(state.Err, &refused) || refused.Problem != endpoint.ProblemOther || refused.Fingerprint != ssh.FingerprintSHA256(other.PublicKey()) || state.HostKey != key {
			t.Fatalf("with another machine at the address: %+v", state)
		}

		b.another.Store(nil)
		up(t, l)
		if l.State().HostKey != key {
			t.Errorf("back, the key is %q", l.State().HostKey)
		}

		// A connection with another key is cut before Require returns.
		l.Require(ssh.FingerprintSHA256(other.PublicKey()))
		if c, err := l.Dial(t.Context(), "unix", "/echo"); err == nil {
			c.Close()
			t.Error("a connection by another key than the required one still serves")
		}
	})
}
