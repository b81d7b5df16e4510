package configure

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
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
	ask := func(yes bool, knownHosts ...string) (keys []string, said string, err error) {
		target, err := endpoint.Resolve(server.URL("/run/c.sock"), endpoint.Options{KnownHosts: knownHosts})
		testutil.Must(t, err)
		var out bytes.Buffer
		n := &Request{target: target, Out: &out, Options: endpoint.Options{KnownHosts: knownHosts}}
		n.Agree = func(_ context.Context, question, instead string) error {
			out.WriteString(question)
			if !yes {
				return errors.New(instead)
			}
			return nil
		}
		keys, err = n.hostKeys(t.Context())
		return keys, out.String(), err
	}
	if keys, said, err := ask(true); err != nil || len(keys) != 1 || !strings.Contains(said, "Are you sure you want to continue connecting?") {
		t.Errorf("yes: %q, %v: %s", keys, err, said)
	}
	if keys, _, err := ask(false); err == nil || !strings.Contains(err.Error(), "nothing was created") {
		t.Errorf("no: %q, %v", keys, err)
	}
	if _, said, err := ask(true, filepath.Join(dir, "none")); err == nil || said != "" {
		t.Errorf("a file that does not have it: %v, %q", err, said)
	}
	pin, _, _, _, err := ssh.ParseAuthorizedKey([]byte(server.HostKey))
	testutil.Must(t, err)
	line := knownhosts.Line([]string{server.Address}, pin) + "\n"
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "known_hosts"), []byte(line), 0o600))
	if keys, said, err := ask(false); err != nil || len(keys) != 1 || said != "" {
		t.Errorf("known: %q, %v: %s", keys, err, said)
	}
}
