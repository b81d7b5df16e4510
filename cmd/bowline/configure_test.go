package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
)

// configure asks about a machine that the person's ssh does not know, and of no other.
func TestConfigureHostKeys(t *testing.T) {
	server := sshtest.Run(t)
	dir := home(t)
	ask := func(answer string, knownHosts ...string) (keys []string, said string, err error) {
		target, err := endpoint.Resolve(server.URL("/run/c.sock"), endpoint.Options{KnownHosts: knownHosts})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		n := &configuring{target: target, out: &out, options: endpoint.Options{KnownHosts: knownHosts}, who: newPerson(nil, &out, false)}
		n.who.answers(strings.NewReader(answer))
		keys, err = n.hostKeys(t.Context())
		return keys, out.String(), err
	}
	if keys, said, err := ask("y\n"); err != nil || len(keys) != 1 || !strings.Contains(said, "Are you sure you want to continue connecting? [y/N] ") {
		t.Errorf("yes: %q, %v: %s", keys, err, said)
	}
	for _, no := range []string{"n\n", "\n", ""} {
		if keys, _, err := ask(no); err == nil || !strings.Contains(err.Error(), "nothing was made") {
			t.Errorf("%q: %q, %v", no, keys, err)
		}
	}
	if _, said, err := ask("y\n", filepath.Join(dir, "none")); err == nil || said != "" {
		t.Errorf("a file that does not have it: %v, %q", err, said)
	}
	pin, _, _, _, err := ssh.ParseAuthorizedKey([]byte(server.HostKey))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "known_hosts"), knownhosts.Line([]string{server.Address}, pin)+"\n")
	if keys, said, err := ask(""); err != nil || len(keys) != 1 || said != "" {
		t.Errorf("known: %q, %v: %s", keys, err, said)
	}
}
