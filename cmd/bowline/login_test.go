package main

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/bowline-k8s/bowline/cri/fake"
	"github.com/bowline-k8s/bowline/host/ssh/sshtest"
	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/sshlogin"
)

// home creates a home directory with ~/.ssh and no agent.
func home(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Setenv("HOME", dir)
	t.Setenv("SSH_AUTH_SOCK", "")
	testutil.Must(t, os.Mkdir(filepath.Join(dir, ".ssh"), 0o700))
	return filepath.Join(dir, ".ssh")
}

func write(t *testing.T, file, text string) {
	t.Helper()
	testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
}

// anAgent serves an ssh-agent with these keys.
func anAgent(t *testing.T, keys ...ed25519.PrivateKey) string {
	t.Helper()
	ring := agent.NewKeyring()
	for _, k := range keys {
		testutil.Must(t, ring.Add(agent.AddedKey{PrivateKey: k}))
	}
	socket := filepath.Join(t.TempDir(), "agent")
	l, err := net.Listen("unix", socket)
	testutil.Must(t, err)
	testutil.Serve(t, l, func(c net.Conn) { _ = agent.ServeAgent(ring, c) })
	return socket
}

// newKey returns a private key and its file content.
func newKey(t *testing.T) (ed25519.PrivateKey, string) {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	testutil.Must(t, err)
	block, err := ssh.MarshalPrivateKey(private, "")
	testutil.Must(t, err)
	return private, string(pem.EncodeToMemory(block))
}

// ownAccess selects the login that writes to authorized_keys. A useless agent does not hide any
// key.
func TestOwnAccess(t *testing.T) {
	dir := home(t)
	private, text := newKey(t)
	own := func(identity string) string {
		return ownAccess(sshlogin.Own(t.Context()), "ssh://root@h/s", identity, "").Own()
	}
	is := func(when, want string) {
		t.Helper()
		if got := own(""); got != want {
			t.Errorf("%s: %q, not %q", when, got, want)
		}
	}
	is("nothing", "")
	write(t, filepath.Join(dir, "id_rsa"), "-----BEGIN OPENSSH PRIVATE KEY-----\n")
	is("a key that cannot be read", "")
	write(t, filepath.Join(dir, "id_ed25519"), text)
	is("a key", "your keys in ~/.ssh")
	t.Setenv("SSH_AUTH_SOCK", filepath.Join(dir, "no-agent"))
	is("an agent that has ended", "your keys in ~/.ssh")
	t.Setenv("SSH_AUTH_SOCK", anAgent(t))
	is("an empty agent", "your keys in ~/.ssh")
	t.Setenv("SSH_AUTH_SOCK", anAgent(t, private))
	is("an agent and a key", "your ssh-agent and your keys in ~/.ssh")
	if got := own("/mine"); got != "the key /mine" {
		t.Errorf("a key that is named: %q", got)
	}
	testutil.Must(t, os.Remove(filepath.Join(dir, "id_ed25519")))
	is("an agent", "your ssh-agent")

	// The command that "host add" prints reaches the host with the same key.
	for _, c := range []struct{ identity, given, want string }{{"/mine", "/given", "--identity-file /mine"}, {"", "/given", ""}, {"/mine", "", "--identity-file /mine"}} {
		if got := strings.Join(ownAccess(sshlogin.Own(t.Context()), "ssh://root@h/s", c.identity, c.given).Flags(), " "); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
	if got := ownAccess(sshlogin.Login{}, "ssh://root@h/s", "", "/given").Flags(); strings.Join(got, " ") != "--identity-file /given" {
		t.Errorf("the only key there is: %q", got)
	}
}

// check, prepare and release log in as ssh does without flags: with the keys in ~/.ssh, although a
// useless agent is set, to a host that known_hosts has.
func TestHostCommandsLogInAsSSH(t *testing.T) {
	server, rt := sshtest.Run(t), fake.Run(t, fake.Config{})
	dir := home(t)
	t.Setenv("SSH_AUTH_SOCK", filepath.Join(dir, "no-agent"))
	key, err := os.ReadFile(server.KeyFile)
	testutil.Must(t, err)
	endpoint := server.URL(rt.Socket)
	out, errOut, status := typed(t, "host", "check", endpoint)
	if status == 0 || !strings.Contains(out, "no key is pinned") && !strings.Contains(out+errOut, "no key to log in") {
		t.Errorf("to an unknown machine: status %d, %s%s", status, out, errOut)
	}
	write(t, filepath.Join(dir, "id_ed25519"), string(key))
	pin, _, _, _, err := ssh.ParseAuthorizedKey([]byte(server.HostKey))
	testutil.Must(t, err)
	write(t, filepath.Join(dir, "known_hosts"), knownhosts.Line([]string{server.Address}, pin)+"\n")
	for _, args := range [][]string{{"host", "check"}, {"host", "prepare", "--dry-run"}} {
		out, errOut, _ := typed(t, append(args, endpoint)...)
		for _, raw := range []string{"host key  ", "failure  login", "failure  reachability", "no key to log in", "no key is pinned"} {
			if strings.Contains(out+errOut, "failure  "+raw) || strings.Contains(out+errOut, raw) && raw != "host key  " {
				t.Errorf("%v: %s%s", args, out, errOut)
			}
		}
		if args[1] == "check" && !strings.Contains(out, "ok       login         root@") {
			t.Errorf("%v: %s%s", args, out, errOut)
		}
	}
	// release opens the host with the check's login, which only this test observes.
	var flags hostFlags
	c := hostReleaseCommand()
	c.SetContext(t.Context())
	flags.rootDir, flags.logsDir, flags.cgroupRoot = "/var/lib/kubelet", "/var/log/pods", "/"
	checked, err := flags.check(c, endpoint)
	testutil.Must(t, err)
	m, err := openHost(t.Context(), checked, flags.nodeConfig(checked))
	testutil.Must(t, err)
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	// A host for which known_hosts has another key is refused.
	_, other := newKey(t)
	signer, err := ssh.ParsePrivateKey([]byte(other))
	testutil.Must(t, err)
	write(t, filepath.Join(dir, "known_hosts"), knownhosts.Line([]string{server.Address}, signer.PublicKey())+"\n")
	if out, errOut, status := typed(t, "host", "check", endpoint); status == 0 || !strings.Contains(strings.Join(strings.Fields(out), " "), "the key has changed") {
		t.Errorf("a changed key: status %d, %s%s", status, out, errOut)
	}
}

// A login that fails can be followed: -v=4 logs each one with the keys that it offers. Without -v the
// report is all that the user sees.
func TestVerbosityShowsLogins(t *testing.T) {
	server := sshtest.Run(t)
	dir := home(t)
	_, stranger := newKey(t)
	write(t, filepath.Join(dir, "id_ed25519"), stranger)
	pin, _, _, _, err := ssh.ParseAuthorizedKey([]byte(server.HostKey))
	testutil.Must(t, err)
	write(t, filepath.Join(dir, "known_hosts"), knownhosts.Line([]string{server.Address}, pin)+"\n")
	signer, err := ssh.ParsePrivateKey([]byte(stranger))
	testutil.Must(t, err)
	for verbosity, want := range map[string]bool{"-v=0": false, "-v=4": true} {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "host", "check", verbosity, server.URL("/run/c.sock"))
		cmd.Env = append(os.Environ(), asProgram+"=1")
		var report, log bytes.Buffer
		cmd.Stdout, cmd.Stderr = &report, &log
		err := cmd.Run()
		if err == nil || !strings.Contains(report.String(), "failure  login") {
			t.Errorf("%s: %v, %s", verbosity, err, &report)
		}
		shown := strings.Contains(log.String(), "Logging in by SSH") && strings.Contains(log.String(), ssh.FingerprintSHA256(signer.PublicKey()))
		if shown != want || !want && log.Len() > 0 {
			t.Errorf("%s: the log has the login and its key: %v\n%s", verbosity, shown, &log)
		}
	}
}
