package endpoint

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
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
	"golang.org/x/crypto/ssh/knownhosts"
)

func edKey(t testing.TB) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func sign(t testing.TB, key crypto.Signer) ssh.Signer {
	t.Helper()
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func pemOf(t testing.TB, key crypto.Signer, passphrase string) []byte {
	t.Helper()
	block, err := ssh.MarshalPrivateKey(key, "")
	if passphrase != "" {
		block, err = ssh.MarshalPrivateKeyWithPassphrase(key, "", []byte(passphrase))
	}
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(block)
}

func line(key ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))) }

func certify(t testing.TB, key ssh.PublicKey, ca crypto.Signer, kind uint32, principal string, end time.Time) *ssh.Certificate {
	t.Helper()
	c := &ssh.Certificate{Key: key, CertType: kind, KeyId: "test", ValidPrincipals: []string{principal}, ValidBefore: uint64(end.Unix())}
	if err := c.SignCert(rand.Reader, sign(t, ca)); err != nil {
		t.Fatal(err)
	}
	return c
}

// serveSSH is a server with these host keys that knows these users' keys and CA.
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
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				if conn, _, _, err := ssh.NewServerConn(c, config); err == nil {
					conn.Wait()
				}
			}()
		}
	}()
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
		if err != nil {
			t.Fatal(err)
		}
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
		if err := os.WriteFile(name, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	good, other, locked, ca, certified := edKey(t), edKey(t), edKey(t), edKey(t), edKey(t)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
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
		if err := ring.Add(agent.AddedKey{PrivateKey: k}); err != nil {
			t.Fatal(err)
		}
	}
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { agent.ServeAgent(ring, c); c.Close() }()
		}
	}()

	for name, c := range map[string]struct {
		target Target
		says   string // of the error, or empty for a login
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
			if !errors.As(err, &auth) || !strings.Contains(err.Error(), c.says) {
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
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{string(j), fmt.Sprintf("%v %+v %#v %d %x", target, target, target, target.Key, target.Key)} {
		if strings.Contains(text, "secretsecret") || strings.Contains(text, fmt.Sprintf("%x", "secretsecret")) || strings.Contains(text, "0x73, 0x65") || strings.Contains(text, "115 101") {
			t.Errorf("it is in %s", text)
		}
	}
}

func TestHostKeys(t *testing.T) {
	ecdsaKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	user, ca, foreign := edKey(t), edKey(t), edKey(t)
	ed, ec, rs := sign(t, edKey(t)), sign(t, ecdsaKey), sign(t, rsaKey)
	users := sign(t, user).PublicKey()
	three := serveSSH(t, []ssh.Signer{ed, ec, rs}, users)
	certKey := edKey(t)
	certified := func(ca ed25519.PrivateKey, principal string, end time.Time) string {
		s, err := ssh.NewCertSigner(certify(t, sign(t, certKey).PublicKey(), ca, ssh.HostCert, principal, end), sign(t, certKey))
		if err != nil {
			t.Fatal(err)
		}
		return serveSSH(t, []ssh.Signer{s, ed}, users)
	}
	forever := time.Now().Add(time.Hour)
	good, expired, elsewhere := certified(ca, "127.0.0.1", forever), certified(ca, "127.0.0.1", time.Unix(1000, 0)), certified(ca, "10.0.0.9", forever)
	alien := certified(foreign, "127.0.0.1", forever)
	caLine := "@cert-authority * " + line(sign(t, ca).PublicKey())
	known := func(address string, key ssh.PublicKey) string { return knownhosts.Line([]string{address}, key) }
	hashed := func(address string, key ssh.PublicKey) string {
		return knownhosts.HashHostname(knownhosts.Normalize(address)) + " " + line(key)
	}
	print256 := func(k ssh.Signer) string { return ssh.FingerprintSHA256(k.PublicKey()) }

	for name, c := range map[string]struct {
		address string
		inline  []string
		files   []string // text of each
		problem string   // of the error; "file" for one of the file
	}{
		"inline ed25519":        {three, []string{line(ed.PublicKey())}, nil, ""},
		"inline ecdsa":          {three, []string{line(ec.PublicKey()) + " a comment"}, nil, ""},
		"inline rsa":            {three, []string{line(rs.PublicKey())}, nil, ""},
		"fingerprint ed25519":   {three, []string{print256(ed)}, nil, ""},
		"fingerprint ecdsa":     {three, []string{print256(ec)}, nil, ""},
		"fingerprint rsa":       {three, []string{print256(rs)}, nil, ""},
		"one of several":        {three, []string{line(sign(t, foreign).PublicKey()), line(rs.PublicKey()), print256(ec)}, nil, ""},
		"file":                  {three, nil, []string{"# comment\n\n" + known(three, rs.PublicKey()) + "\n"}, ""},
		"hashed":                {three, nil, []string{hashed(three, ec.PublicKey())}, ""},
		"second file":           {three, nil, []string{known("other:1", ed.PublicKey()), known(three, ec.PublicKey())}, ""},
		"file or inline":        {three, []string{line(rs.PublicKey())}, []string{known("other:1", ed.PublicKey())}, ""},
		"authority":             {good, nil, []string{caLine}, ""},
		"authority and a key":   {three, nil, []string{caLine + "\n" + known(three, ec.PublicKey())}, "certificate or key"},
		"nothing":               {three, nil, nil, "unknown"},
		"no file":               {three, nil, []string{"MISSING"}, "unknown"},
		"portless":              {three, nil, []string{known("127.0.0.1:22", ec.PublicKey())}, ""},
		"portless, another key": {three, nil, []string{known("127.0.0.1:22", sign(t, foreign).PublicKey())}, "unknown"},
		"port before portless":  {three, nil, []string{known("127.0.0.1:22", ec.PublicKey()) + "\n" + known(three, sign(t, foreign).PublicKey())}, "changed"},
		"another host's":        {three, nil, []string{known("other:1", ed.PublicKey())}, "unknown"},
		"another port's":        {three, nil, []string{known("127.0.0.1:1", ed.PublicKey())}, "unknown"},
		"changed":               {three, []string{line(sign(t, foreign).PublicKey())}, nil, "changed"},
		"changed in a file":     {three, nil, []string{known(three, sign(t, foreign).PublicKey())}, "changed"},
		"changed fingerprint":   {three, []string{print256(sign(t, foreign))}, nil, "changed"},
		"type gone":             {good, []string{line(rs.PublicKey())}, nil, "changed"},
		"revoked":               {three, nil, []string{known(three, ed.PublicKey()) + "\n@revoked * " + line(ed.PublicKey())}, "revoked"},
		"revoked but inline":    {three, []string{line(ed.PublicKey())}, []string{"@revoked * " + line(ed.PublicKey())}, "revoked"},
		"expired certificate":   {expired, nil, []string{caLine}, "certificate"},
		"another's certificate": {elsewhere, nil, []string{caLine}, "certificate"},
		"another authority":     {alien, nil, []string{caLine}, "certificate"},
		"bad line":              {three, nil, []string{"127.0.0.1 ssh-ed25519 AAAA"}, "file"},
	} {
		t.Run(name, func(t *testing.T) {
			target := &Target{User: "root", Address: c.address, HostKeyName: c.address, HostKeys: c.inline,
				Credentials: Credentials{Key: pemOf(t, user, "")}}
			for i, text := range c.files {
				file := filepath.Join(t.TempDir(), fmt.Sprint("known_hosts", i))
				if text != "MISSING" {
					if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				target.KnownHosts = append(target.KnownHosts, file)
			}
			err := login(t, target)
			switch c.problem {
			case "", "certificate or key":
				if err != nil {
					t.Error(err)
				}
				return
			case "file":
				if err == nil || !strings.Contains(err.Error(), "known_hosts0:1") {
					t.Errorf("got %v", err)
				}
				return
			}
			var key *HostKeyError
			if !errors.As(err, &key) || key.Problem != c.problem || !strings.Contains(err.Error(), c.address) ||
				!strings.Contains(err.Error(), "bowline host scan "+c.address) {
				t.Fatalf("got %v", err)
			}
			if name == "no file" && !strings.Contains(err.Error(), "known_hosts0 (missing)") {
				t.Errorf("it does not say which file is missing: %v", err)
			}
			if key.Type != "" && !strings.Contains(err.Error(), key.Fingerprint) || key.Type == "" && name != "type gone" {
				t.Errorf("it does not name the presented key: %v", err)
			}
		})
	}
}

func TestScan(t *testing.T) {
	ed, user := sign(t, edKey(t)), sign(t, edKey(t)).PublicKey()
	address := serveSSH(t, []ssh.Signer{ed}, user)
	dials := 0
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		dials++
		return new(net.Dialer).DialContext(ctx, network, address)
	}
	keys, err := Scan(t.Context(), address, dial)
	if err != nil || len(keys) != 1 || !bytes.Equal(keys[0].Marshal(), ed.PublicKey().Marshal()) || dials != 2 {
		t.Errorf("got %v, %v by %d connections", keys, err, dials)
	}

	// What answers is no sshd, or nothing does.
	for _, text := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", ""} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			c.Write([]byte(text))
			c.Close()
		}()
		if keys, err := Scan(t.Context(), ln.Addr().String(), dial); err == nil || !strings.Contains(err.Error(), ln.Addr().String()) {
			t.Errorf("got %v, %v", keys, err)
		}
		ln.Close()
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if keys, err := Scan(ctx, address, dial); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that is over: %v, %v", keys, err)
	}
}

func TestParsePinMistakes(t *testing.T) {
	key := line(sign(t, edKey(t)).PublicKey())
	_, blob, _ := strings.Cut(key, " ")
	for text, says := range map[string]string{
		"":                              "neither",
		"ssh-ed25519":                   "neither",
		"SHA256:short":                  "not a fingerprint",
		"SHA256:" + blob:                "not a fingerprint",
		"ssh-ed25519 ****":              "not base64",
		"ssh-ed25519 AAAA":              "host key",
		"ssh-rsa " + blob:               "says ssh-rsa and holds",
		"127.0.0.1 " + key:              "not base64",
		"MD5:aa:bb:cc:dd:ee:ff:00:11:2": "neither",
	} {
		if p, err := parsePin(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q is %v, %v; it should say %q", text, p, err, says)
		}
	}
}

func FuzzParsePin(f *testing.F) {
	key := sign(f, edKey(f)).PublicKey()
	f.Add(line(key))
	f.Add(ssh.FingerprintSHA256(key))
	f.Add("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQ==")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := parsePin(text)
		if err != nil {
			return
		}
		if len(p.fingerprint) != len("SHA256:")+43 {
			t.Errorf("%q has the fingerprint %q", text, p.fingerprint)
		}
		if p.key == nil {
			return
		}
		again, err := parsePin(line(p.key))
		if err != nil || again.fingerprint != p.fingerprint {
			t.Errorf("%q: %+v came back as %+v, %v", text, p, again, err)
		}
	})
}
