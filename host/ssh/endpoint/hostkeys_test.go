package endpoint

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/bowline-k8s/bowline/internal/testutil"
	"github.com/bowline-k8s/bowline/test/corpus"
)

func TestHostKeys(t *testing.T) {
	ecdsaKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	testutil.Must(t, err)
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	testutil.Must(t, err)
	user, ca, foreign := edKey(t), edKey(t), edKey(t)
	ed, ec, rs := sign(t, edKey(t)), sign(t, ecdsaKey), sign(t, rsaKey)
	users := sign(t, user).PublicKey()
	three := serveSSH(t, []ssh.Signer{ed, ec, rs}, users)
	certKey := edKey(t)
	certified := func(ca ed25519.PrivateKey, principal string, end time.Time) string {
		s, err := ssh.NewCertSigner(certify(t, sign(t, certKey).PublicKey(), ca, ssh.HostCert, principal, end), sign(t, certKey))
		testutil.Must(t, err)
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
		problem string   // of the error; "file" for an error about a file
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
					testutil.Must(t, os.WriteFile(file, []byte(text), 0o600))
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
				!strings.Contains(key.Hint(), "bowline host scan "+c.address) {
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

	// The server is not sshd, or closes the connection.
	for _, text := range []string{"HTTP/1.1 400 Bad Request\r\n\r\n", ""} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		testutil.Must(t, err)
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
	corpus.Add(f)
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

// TestKnown: which of a host's keys known_hosts files pin.
func TestKnown(t *testing.T) {
	mine, other, ca := sign(t, edKey(t)).PublicKey(), sign(t, edKey(t)).PublicKey(), sign(t, edKey(t)).PublicKey()
	const address = "10.0.0.7:2222"
	for name, c := range map[string]struct {
		file    string
		known   bool
		problem string
	}{
		"known":             {knownhosts.Line([]string{address}, mine), true, ""},
		"hashed":            {knownhosts.HashHostname(knownhosts.Normalize(address)) + " " + line(mine), true, ""},
		"another host's":    {knownhosts.Line([]string{"10.0.0.8:22"}, other), false, ""},
		"empty":             {"", false, ""},
		"changed":           {knownhosts.Line([]string{address}, other), false, "changed"},
		"revoked":           {"@revoked * " + line(mine), false, "revoked"},
		"an authority only": {"@cert-authority * " + line(ca), false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "known_hosts")
			testutil.Must(t, os.WriteFile(file, []byte(c.file+"\n"), 0o600))
			target, err := Resolve("ssh://root@"+address+"/run/c.sock", Options{KnownHosts: []string{file, file + ".missing"}})
			testutil.Must(t, err)
			keys, err := target.Known([]ssh.PublicKey{mine})
			problem := ""
			var refused *HostKeyError
			if errors.As(err, &refused) {
				problem = refused.Problem
			}
			if problem != c.problem || (err != nil) != (c.problem != "") || (len(keys) == 1) != c.known {
				t.Errorf("%d keys, %v", len(keys), err)
			}
		})
	}
}
