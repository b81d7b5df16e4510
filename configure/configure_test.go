package configure

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

// configure asks only about a host that the user's known_hosts does not have.
func TestConfigureHostKeys(t *testing.T) {
	server := sshtest.Run(t)
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("SSH_AUTH_SOCK", "")
	dir := filepath.Join(home, ".ssh")
	testutil.Must(t, os.Mkdir(dir, 0o700))
	refused := errors.New("nothing was created")
	ask := func(yes bool, knownHosts ...string) (keys []string, asked bool, err error) {
		target, err := endpoint.Resolve(server.URL("/run/c.sock"), endpoint.Options{KnownHosts: knownHosts})
		testutil.Must(t, err)
		n := &Request{target: target, Options: endpoint.Options{KnownHosts: knownHosts}}
		n.Trust = func(_ context.Context, address string, keys []ssh.PublicKey) error {
			if asked = true; address != server.Address || len(keys) != 1 {
				t.Errorf("asked about %d keys of %s", len(keys), address)
			}
			if !yes {
				return refused
			}
			return nil
		}
		keys, err = n.hostKeys(t.Context())
		return keys, asked, err
	}
	if keys, asked, err := ask(true); err != nil || len(keys) != 1 || !asked {
		t.Errorf("yes: %q, %v, asked: %v", keys, err, asked)
	}
	if keys, _, err := ask(false); !errors.Is(err, refused) {
		t.Errorf("no: %q, %v", keys, err)
	}
	if _, asked, err := ask(true, filepath.Join(dir, "none")); err == nil || asked {
		t.Errorf("a file that does not have it: %v, asked: %v", err, asked)
	}
	pin, _, _, _, err := ssh.ParseAuthorizedKey([]byte(server.HostKey))
	testutil.Must(t, err)
	line := knownhosts.Line([]string{server.Address}, pin) + "\n"
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "known_hosts"), []byte(line), 0o600))
	if keys, asked, err := ask(false); err != nil || len(keys) != 1 || asked {
		t.Errorf("known: %q, %v, asked: %v", keys, err, asked)
	}
}
