package endpoint

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/internal/testutil"
)

func edKey(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	testutil.Must(t, err)
	return key
}

func sign(t testing.TB, key crypto.Signer) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(key)
	testutil.Must(t, err)
	return s
}

func pemOf(t testing.TB, key crypto.Signer, passphrase string) []byte {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	testutil.Must(t, err)
	return pem.EncodeToMemory(block)
}

func line(key ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) }

func certify(t testing.TB, key ssh.PublicKey, ca crypto.Signer, kind uint32, principal string, end time.Time) *ssh.Certificate {
	t.Helper()
	c := &ssh.Certificate{Key: key, CertType: kind, KeyId: "test", ValidPrincipals: []string{principal}, ValidBefore: uint64(end.Unix())}
	testutil.Must(t, c.SignCert(rand.Reader, sign(t, ca)))
	return c
}

// serveSSH is a server with these host keys that accepts these users' keys and CA.
func serveSSH(t *testing.T, hostKeys []ssh.Signer, users ...ssh.PublicKey) string {
	t.Helper()
	checker := &ssh.CertChecker{
		IsUserAuthority: func(k ssh.PublicKey) bool { return line(k) == line(users[0]) },
		UserKeyFallback: func(_ ssh.ConnMetadata, k ssh.PublicKey) (*ssh.Permissions, error) {
			for _, u := range users {
				if line(u) == line(k) {
					return nil, nil
				}
			}
			return nil, errors.New("unknown")
		},
	}
	config := &ssh.ServerConfig{PublicKeyCallback: checker.Authenticate}
	for _, k := range hostKeys {
		config.AddHostKey(k)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	testutil.Serve(t, ln, func(c net.Conn) {
		if conn, _, _, err := ssh.NewServerConn(c, config); err == nil {
			conn.Wait()
		}
	})
	return ln.Addr().String()
}

// login logs in as link does.
func login(t *testing.T, target *Target) error {
	t.Helper()
	var first error
	for without := []string(nil); ; {
		client, err := target.Client(t.Context(), without...)
		if err != nil {
			return err
		}
		defer client.Close()
		raw, err := net.Dial("tcp", target.Address)
		testutil.Must(t, err)
		defer raw.Close()
		_, _, _, err = ssh.NewClientConn(raw, target.HostKeyName, client.Config)
		err = client.Explain(err)
		if without = client.HostKeyTypes(err, without); without == nil {
			if err != nil && first != nil {
				return first
			}
			return err
		}
		if first == nil {
			first = err
		}
	}
}

func TestCredentials(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, data []byte) string {
		t.Helper()
		name = filepath.Join(dir, name)
		testutil.Must(t, os.WriteFile(name, data, 0o600))
		return name
	}
	good, other, locked, ca, certified := edKey(t), edKey(t), edKey(t), edKey(t), edKey(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	testutil.Must(t, err)
	hostKey := sign(t, edKey(t))
	address := serveSSH(t, []ssh.Signer{hostKey}, sign(t, ca).PublicKey(), sign(t, good).PublicKey(), sign(t, locked).PublicKey(), sign(t, rsaKey).PublicKey())
	forever := time.Now().Add(time.Hour)
	user := certify(t, sign(t, certified).PublicKey(), ca, ssh.UserCert, "root", forever)
	ended := certify(t, sign(t, certified).PublicKey(), ca, ssh.UserCert, "root", time.Unix(1000, 0))
	host := certify(t, sign(t, certified).PublicKey(), ca, ssh.HostCert, "root", forever)

	goodFile, lockedFile := file("good", pemOf(t, good, "")), file("locked", pemOf(t, locked, ""))
	// One round of its key derivation is enough here, and much faster.
	if out, err := exec.Command("ssh-keygen", "-q", "-p", "-a", "1", "-P", "", "-N", "hunter2", "-f", lockedFile).CombinedOutput(); err != nil {
		t.Logf("without ssh-keygen this is slow: %v: %s", err, out)
		file("locked", pemOf(t, locked, "hunter2"))
	}
	otherFile := file("other", pemOf(t, other, ""))
	certifiedFile, besideFile := file("certified", pemOf(t, certified, "")), file("beside", pemOf(t, certified, ""))
	certFile := file("cert", ssh.MarshalAuthorizedKey(user))
	file("beside-cert.pub", ssh.MarshalAuthorizedKey(user))
	pub := file("locked.pub", ssh.MarshalAuthorizedKey(sign(t, locked).PublicKey()))
	otherPub := file("other.pub", ssh.MarshalAuthorizedKey(sign(t, other).PublicKey()))
	rsaFile := file("rsa", pemOf(t, rsaKey, ""))
	junk := file("junk", []byte("-----BEGIN NOTHING-----\nsecretsecret\n-----END NOTHING-----\n"))
	wrong, right := file("wrong", []byte("tr0ub4dor\n")), file("right", []byte("hunter2\n"))

	socket := filepath.Join(dir, "agent")
	ring := agent.NewKeyring()
	for _, k := range []ed25519.PrivateKey{other, locked} {
		testutil.Must(t, ring.Add(agent.AddedKey{PrivateKey: k}))
	}
	ln, err := net.Listen("unix", socket)
	testutil.Must(t, err)
	defer ln.Close()
	testutil.Serve(t, ln, func(c net.Conn) { _ = agent.ServeAgent(ring, c) })

	for name, c := range map[string]struct {
		target Target
		says   string // text of the error, or empty if the login succeeds
	}{
		"bytes":                        {Target{Credentials: Credentials{Key: pemOf(t, good, "")}}, ""},
		"file":                         {Target{Credentials: Credentials{KeyFile: goodFile}}, ""},
		"rsa":                          {Target{Credentials: Credentials{KeyFile: rsaFile}}, ""},
		"second identity":              {Target{IdentityFiles: []string{otherFile, dir + "/no", goodFile}}, ""},
		"passphrase":                   {Target{Credentials: Credentials{KeyFile: lockedFile, Passphrase: Secret("hunter2")}}, ""},
		"passphrase file":              {Target{Credentials: Credentials{KeyFile: lockedFile, PassphraseFile: right}}, ""},
		"agent":                        {Target{Credentials: Credentials{AgentSocket: socket}}, ""},
		"locked key of the agent":      {Target{Credentials: Credentials{AgentSocket: socket}, IdentitiesOnly: true, IdentityFiles: []string{lockedFile}}, ""},
		"public key of the agent":      {Target{Credentials: Credentials{AgentSocket: socket}, IdentitiesOnly: true, IdentityFiles: []string{pub}}, ""},
		"certificate beside":           {Target{Credentials: Credentials{KeyFile: besideFile}}, ""},
		"certificate file":             {Target{IdentityFiles: []string{certifiedFile}, CertificateFiles: []string{certFile}}, ""},
		"certificate bytes":            {Target{Credentials: Credentials{KeyFile: certifiedFile, Certificate: ssh.MarshalAuthorizedKey(user)}}, ""},
		"none":                         {Target{}, "no key to log in to root@127.0.0.1"},
		"missing identities":           {Target{IdentityFiles: []string{dir + "/no"}}, "/no is missing"},
		"missing key":                  {Target{Credentials: Credentials{KeyFile: dir + "/no"}}, "no such file"},
		"junk":                         {Target{Credentials: Credentials{KeyFile: junk}}, "neither an OpenSSH nor a PEM private key"},
		"junk bytes":                   {Target{Credentials: Credentials{Key: Secret("secretsecret")}}, "the configured key is neither"},
		"public key bytes":             {Target{Credentials: Credentials{Key: ssh.MarshalAuthorizedKey(sign(t, good).PublicKey())}}, "give the private one"},
		"no passphrase":                {Target{Credentials: Credentials{KeyFile: lockedFile}}, "has a passphrase and none is configured"},
		"wrong passphrase":             {Target{Credentials: Credentials{KeyFile: lockedFile, PassphraseFile: wrong}}, "the configured passphrase is wrong"},
		"missing passphrase file":      {Target{Credentials: Credentials{KeyFile: lockedFile, PassphraseFile: dir + "/no"}}, "no such file"},
		"no agent":                     {Target{Credentials: Credentials{AgentSocket: dir + "/no"}}, "ssh-agent: dial unix"},
		"identities only":              {Target{Credentials: Credentials{AgentSocket: socket}, IdentitiesOnly: true, IdentityFiles: []string{otherPub}}, "authorized_keys"},
		"identities only without any":  {Target{Credentials: Credentials{AgentSocket: socket}, IdentitiesOnly: true}, "the agent at " + socket + " has none to offer"},
		"unknown key":                  {Target{Credentials: Credentials{KeyFile: otherFile}}, "ssh-ed25519 " + ssh.FingerprintSHA256(sign(t, other).PublicKey())},
		"key without its certificate":  {Target{Credentials: Credentials{KeyFile: certifiedFile}}, "authorized_keys"},
		"certificate that ended":       {Target{Credentials: Credentials{KeyFile: certifiedFile, Certificate: ssh.MarshalAuthorizedKey(ended)}}, "which ended at 1970-01-01T00:16:40Z"},
		"certificate of a host":        {Target{Credentials: Credentials{KeyFile: certifiedFile, Certificate: ssh.MarshalAuthorizedKey(host)}}, "is for a host"},
		"certificate that is a key":    {Target{IdentityFiles: []string{goodFile}, CertificateFiles: []string{pub}}, "not a certificate"},
		"certificate that is not one":  {Target{IdentityFiles: []string{goodFile}, CertificateFiles: []string{goodFile}}, "is not an OpenSSH certificate"},
		"certificate that is missing":  {Target{IdentityFiles: []string{goodFile}, CertificateFiles: []string{dir + "/no"}}, "no such file"},
		"certificate of another key":   {Target{Credentials: Credentials{KeyFile: otherFile, Certificate: ssh.MarshalAuthorizedKey(user)}}, "authorized_keys"},
		"public key without its agent": {Target{IdentityFiles: []string{pub}}, "a public key that the agent does not have"},
	} {
		t.Run(name, func(t *testing.T) {
			target := c.target
			target.User, target.Address, target.HostKeyName = "root", address, address
			target.HostKeys = []string{line(hostKey.PublicKey())}
			err := login(t, &target)
			if c.says == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var auth *AuthError
			if !errors.As(err, &auth) || !strings.Contains(err.Error()+"\n"+hint.Of(err), c.says) {
				t.Errorf("got %v; it should say %q", err, c.says)
			}
			for _, secret := range []string{"secretsecret", "tr0ub4dor", "hunter2"} {
				if err != nil && strings.Contains(err.Error(), secret) {
					t.Errorf("the error shows %s: %v", secret, err)
				}
			}
		})
	}
}

func TestSecretIsNotPrinted(t *testing.T) {
	target := Target{Credentials: Credentials{Key: Secret("secretsecret"), Passphrase: Secret("secretsecret")}}
	j, err := json.Marshal(target)
	testutil.Must(t, err)
	for _, text := range []string{string(j), fmt.Sprintf("%v %+v %#v %d %x", target, target, target, target.Key, target.Key)} {
		if strings.Contains(text, "secretsecret") || strings.Contains(text, fmt.Sprintf("%x", "secretsecret")) || strings.Contains(text, "0x73, 0x65") || strings.Contains(text, "115 101") {
			t.Errorf("it is in %s", text)
		}
	}
}
