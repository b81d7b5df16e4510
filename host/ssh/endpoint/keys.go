package endpoint

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"github.com/bowline-k8s/bowline/hint"
)

// agentTimeout bounds all requests to an agent in one login. An agent that asks its user takes
// longer than any login to a host should.
const agentTimeout = 10 * time.Second

// maxFile is far more than the size of a key, a certificate or a known_hosts file.
const maxFile = 4 << 20

// keyring is the set of keys that one login can offer.
type keyring struct {
	signers  []ssh.Signer
	offered  map[string]bool // wire format of the public keys in signers
	notes    []string        // what was skipped, for the error if no key is left
	agentKey map[string]ssh.Signer
	agentAll []ssh.Signer
	agent    net.Conn // nil without an agent
}

func (k *keyring) close() {
	if k.agent != nil {
		k.agent.Close()
	}
}

// names are the types and fingerprints of the offered keys, for an error.
func (k *keyring) names() []string {
	var names []string
	for _, s := range k.signers {
		pub := s.PublicKey()
		if c, ok := pub.(*ssh.Certificate); ok {
			names = append(names, certificateName(c))
			continue
		}
		names = append(names, pub.Type()+" "+ssh.FingerprintSHA256(pub))
	}
	return names
}

func certificateName(c *ssh.Certificate) string {
	name := fmt.Sprintf("certificate %q of %s %s", c.KeyId, c.Key.Type(), ssh.FingerprintSHA256(c.Key))
	if c.ValidBefore != ssh.CertTimeInfinity {
		if end := time.Unix(int64(c.ValidBefore), 0); end.Before(time.Now()) {
			name += ", which ended at " + end.UTC().Format(time.RFC3339)
		}
	}
	return name
}

func (k *keyring) add(s ssh.Signer) {
	if wire := string(s.PublicKey().Marshal()); !k.offered[wire] {
		k.offered[wire] = true
		k.signers = append(k.signers, s)
	}
}

// keyring collects the target's keys: the configured one, those of the identity files, then the
// rest of the agent. If a key has a certificate, that is offered first.
func (t *Target) keyring(ctx context.Context) (_ *keyring, err error) {
	k := &keyring{offered: map[string]bool{}, agentKey: map[string]ssh.Signer{}}
	defer func() {
		if err != nil {
			k.close()
		}
	}()
	passphrase, err := t.passphrase()
	if err != nil {
		return nil, err
	}
	if err := k.openAgent(ctx, t.AgentSocket); err != nil {
		return nil, err
	}
	certificates, err := t.certificates()
	if err != nil {
		return nil, err
	}
	offer := func(s ssh.Signer, file string) error {
		certs := certificates
		if file != "" {
			beside, err := readCertificate(strings.TrimSuffix(file, ".pub") + "-cert.pub")
			if err == nil {
				certs = append([]*ssh.Certificate{beside}, certs...)
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		for _, c := range certs {
			if bytes.Equal(c.Key.Marshal(), s.PublicKey().Marshal()) {
				with, err := ssh.NewCertSigner(c, s)
				if err != nil {
					return fmt.Errorf("%s: %w", certificateName(c), err)
				}
				k.add(with)
			}
		}
		k.add(s)
		return nil
	}

	if len(t.Key) > 0 {
		s, err := k.parse(t.Key, "the configured key", passphrase)
		if err == nil && s == nil {
			err = hint.Add(errors.New("the configured key is a public key that no ssh-agent here has"), "give the private one")
		}
		if err != nil {
			return nil, err
		}
		if err := offer(s, ""); err != nil {
			return nil, err
		}
	}
	files := t.IdentityFiles
	if t.KeyFile != "" {
		files = append([]string{t.KeyFile}, files...)
	}
	for _, file := range files {
		data, err := readFile(file)
		if errors.Is(err, fs.ErrNotExist) && file != t.KeyFile {
			k.notes = append(k.notes, file+" is missing")
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("key: %w", err)
		}
		s, err := k.parse(data, "key "+file, passphrase)
		if err != nil {
			return nil, err
		}
		if s == nil {
			k.notes = append(k.notes, file+" is a public key that the agent does not have")
			continue
		}
		if err := offer(s, file); err != nil {
			return nil, err
		}
	}
	if !t.IdentitiesOnly {
		for _, s := range k.agentAll {
			if err := offer(s, ""); err != nil {
				return nil, err
			}
		}
	}
	if len(k.signers) == 0 {
		return nil, t.noKey(k)
	}
	return k, nil
}

func (t *Target) noKey(k *keyring) error {
	why := "none is configured"
	if k.agent != nil {
		k.notes = append(k.notes, "the agent at "+t.AgentSocket+" has none to offer")
	}
	if len(k.notes) > 0 {
		why = strings.Join(k.notes, ", ")
	}
	return hint.Add(fmt.Errorf("no key to log in to %s: %s", t, why), "give a key file, an IdentityFile in ssh_config, or the socket of an ssh-agent")
}

// openAgent lists the keys of the agent; without a socket it does nothing.
func (k *keyring) openAgent(ctx context.Context, socket string) error {
	if socket == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, agentTimeout)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return fmt.Errorf("ssh-agent: %w", err)
	}
	k.agent = conn
	conn.SetDeadline(time.Now().Add(agentTimeout))
	if k.agentAll, err = agent.NewClient(conn).Signers(); err != nil {
		return fmt.Errorf("ssh-agent at %s: %w", socket, err)
	}
	for _, s := range k.agentAll {
		k.agentKey[string(s.PublicKey().Marshal())] = s
	}
	return nil
}

// parse makes a signer of a private key. For a public key, or a private one whose passphrase is
// unknown, it returns the agent's signer. It returns nil for a public key that the agent does
// not have.
func (k *keyring) parse(data []byte, what string, passphrase []byte) (ssh.Signer, error) {
	s, err := ssh.ParsePrivateKey(data)
	if err == nil {
		return s, nil
	}
	var missing *ssh.PassphraseMissingError
	if errors.As(err, &missing) {
		if len(passphrase) > 0 {
			if s, err = ssh.ParsePrivateKeyWithPassphrase(data, passphrase); err == nil {
				return s, nil
			}
		}
		if missing.PublicKey != nil {
			if s := k.agentKey[string(missing.PublicKey.Marshal())]; s != nil {
				return s, nil
			}
		}
		if len(passphrase) == 0 {
			return nil, hint.Add(fmt.Errorf("%s has a passphrase and none is configured", what), "give it, or load the key into an ssh-agent")
		}
		if errors.Is(err, x509.IncorrectPasswordError) {
			return nil, fmt.Errorf("%s: the configured passphrase is wrong", what)
		}
		return nil, fmt.Errorf("%s cannot be decrypted with the configured passphrase: %w", what, err)
	}
	if pub, _, _, _, perr := ssh.ParseAuthorizedKey(data); perr == nil {
		return k.agentKey[string(pub.Marshal())], nil
	}
	return nil, fmt.Errorf("%s is neither an OpenSSH nor a PEM private key: %w", what, err)
}

func (t *Target) passphrase() ([]byte, error) {
	if len(t.Passphrase) > 0 || t.PassphraseFile == "" {
		return t.Passphrase, nil
	}
	data, err := readFile(t.PassphraseFile)
	if err != nil {
		return nil, fmt.Errorf("passphrase: %w", err)
	}
	data = bytes.TrimSuffix(data, []byte("\n"))
	return bytes.TrimSuffix(data, []byte("\r")), nil
}

// certificates are the configured ones.
func (t *Target) certificates() ([]*ssh.Certificate, error) {
	var certs []*ssh.Certificate
	if len(t.Certificate) > 0 {
		c, err := parseCertificate(t.Certificate, "the configured certificate")
		if err != nil {
			return nil, err
		}
		certs = append(certs, c)
	}
	for _, file := range t.CertificateFiles {
		c, err := readCertificate(file)
		if err != nil {
			return nil, err
		}
		certs = append(certs, c)
	}
	return certs, nil
}

func readCertificate(file string) (*ssh.Certificate, error) {
	data, err := readFile(file)
	if err != nil {
		return nil, fmt.Errorf("certificate: %w", err)
	}
	return parseCertificate(data, "certificate "+file)
}

func parseCertificate(data []byte, what string) (*ssh.Certificate, error) {
	pub, _, _, _, err := ssh.ParseAuthorizedKey(data)
	if err != nil {
		return nil, hint.Add(fmt.Errorf("%s is not an OpenSSH certificate: %w", what, err), "give a line that starts with ssh-…-cert-v01@openssh.com")
	}
	c, ok := pub.(*ssh.Certificate)
	if !ok {
		return nil, hint.Add(fmt.Errorf("%s is a plain %s public key, not a certificate", what, pub.Type()), "sign it with ssh-keygen -s")
	}
	if c.CertType != ssh.UserCert {
		return nil, hint.Add(fmt.Errorf("%s is for a host, not for a user", what), "sign it without ssh-keygen -h")
	}
	return c, nil
}

// readFile reads a small local file.
func readFile(file string) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("%s is larger than %d bytes", file, maxFile)
	}
	return data, nil
}
