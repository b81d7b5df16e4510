package configure

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"k8s.io/client-go/rest"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/nodecert"
)

// TestOwnLogin: without --identity-file the configuration names the login that the user's own ssh
// would use, and only one that the host accepts.
func TestOwnLogin(t *testing.T) {
	server := sshtest.Run(t)
	accepted := testutil.ReadFile(t, server.KeyFile)
	parsed, err := ssh.ParseRawPrivateKey([]byte(accepted))
	testutil.Must(t, err)
	_, private, err := ed25519.GenerateKey(rand.Reader)
	testutil.Must(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	testutil.Must(t, err)
	refused := string(pem.EncodeToMemory(block))
	agentOf := func(t *testing.T, key any) string {
		ring := agent.NewKeyring()
		testutil.Must(t, ring.Add(agent.AddedKey{PrivateKey: key}))
		socket := filepath.Join(t.TempDir(), "agent")
		l, err := net.Listen("unix", socket)
		testutil.Must(t, err)
		testutil.Serve(t, l, func(c net.Conn) { _ = agent.ServeAgent(ring, c) })
		return socket
	}
	enough := errors.New("no cluster here")
	for name, c := range map[string]struct {
		keys  map[string]string // files of ~/.ssh
		agent any               // the agent's key
		file  string            // the name of identityFile
		bad   string            // the error
	}{
		"a key":                    {keys: map[string]string{"id_ed25519": string(accepted)}, file: "id_ed25519"},
		"the second key":           {keys: map[string]string{"id_ed25519": refused, "id_rsa": string(accepted)}, file: "id_rsa"},
		"an agent":                 {agent: parsed},
		"a refused key, an agent":  {keys: map[string]string{"id_ed25519": refused}, agent: parsed},
		"a key before an agent":    {keys: map[string]string{"id_ed25519": string(accepted)}, agent: parsed, file: "id_ed25519"},
		"nothing":                  {bad: "no key to log in with"},
		"nothing that is accepted": {keys: map[string]string{"id_ed25519": refused}, agent: &private, bad: "refuses your keys"},
	} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			t.Setenv("HOME", home)
			dir, socket := filepath.Join(home, ".ssh"), ""
			testutil.Must(t, os.Mkdir(dir, 0o700))
			for file, text := range c.keys {
				testutil.Must(t, os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600))
			}
			if c.agent != nil {
				socket = agentOf(t, c.agent)
			}
			t.Setenv("SSH_AUTH_SOCK", socket)
			n := &Request{Login: "root@" + server.Address, Socket: "/run/c.sock", Name: "box-1", Dir: t.TempDir(),
				Options: endpoint.Options{HostKeys: []string{server.HostKey}},
				Admin:   func() (*rest.Config, error) { return nil, enough }}
			n.Trust = func(context.Context, string, []ssh.PublicKey) error { return errors.New("asked") }
			testutil.Must(t, n.Validate())
			_, err := n.Run(t.Context())
			if c.bad != "" {
				if err == nil || !strings.Contains(err.Error(), c.bad) || !strings.Contains(hint.Of(err), "--identity-file") {
					t.Errorf("%v (%s), want %q", err, hint.Of(err), c.bad)
				}
				return
			}
			if !errors.Is(err, enough) {
				t.Fatal(err)
			}
			text, err := n.yaml([]string{server.HostKey}, &nodecert.Issued{})
			testutil.Must(t, err)
			want := "agentSocket: " + socket
			if c.file != "" {
				want = "identityFile: " + filepath.Join(dir, c.file)
			}
			if !strings.Contains(string(text), want+"\n") || strings.Count(string(text), "identityFile")+strings.Count(string(text), "agentSocket") != 1 {
				t.Errorf("want %s and nothing else:\n%s", want, text)
			}
		})
	}
}
