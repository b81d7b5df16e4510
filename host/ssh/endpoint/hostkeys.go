package endpoint

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/knownhosts"

	"github.com/bowline-k8s/bowline/hint"
)

// ProblemOther is the problem of a host key that is pinned, but is not the one that this host
// had before: see Client.Require.
const ProblemOther = "other"

// HostKeyError reports that the host key of the host is not pinned. Nothing but the key exchange
// was sent to the host.
type HostKeyError struct {
	Host        string // as it was looked up, "host:port"
	Type        string // of the presented key, "ssh-ed25519"; empty if none was presented
	Fingerprint string // of the presented key, "SHA256:…"; empty if none was presented
	// Known are the pinned keys, such as "ssh-ed25519 SHA256:… (known_hosts:3)"; empty if nothing
	// is pinned for the host.
	Known []string
	// Problem is "unknown", "changed", "revoked", "certificate" or ProblemOther.
	Problem string
	Files   []string // the known_hosts files; missing ones are marked
	Scan    string   // the command that shows the keys of the host
	Err     error    // the reason why a certificate is not valid
}

func (e *HostKeyError) Error() string {
	presented := "no host key of a pinned type"
	if e.Type != "" {
		presented = "the host key " + e.Type + " " + e.Fingerprint
	}
	switch e.Problem {
	case "unknown":
		in := ""
		if len(e.Files) > 0 {
			in = " in " + strings.Join(e.Files, ", ")
		}
		return fmt.Sprintf("%s presents %s, but no key is pinned for it%s", e.Host, presented, in)
	case "revoked":
		return fmt.Sprintf("%s presents %s, which %s revokes", e.Host, presented, strings.Join(e.Known, ", "))
	case ProblemOther:
		return fmt.Sprintf("%s presents %s, but the managed host has %s; nothing is sent to it", e.Host, presented, strings.Join(e.Known, ", "))
	case "certificate":
		return fmt.Sprintf("%s presents an invalid certificate of the host key %s: %v", e.Host, e.Fingerprint, e.Err)
	}
	return fmt.Sprintf("%s presents %s, but %s is pinned: the host was reinstalled, or someone intercepts the connection", e.Host, presented, strings.Join(e.Known, ", "))
}

// Hint has the command that shows the keys of the host.
func (e *HostKeyError) Hint() string {
	what := "if you expect the change, pin the new key"
	switch e.Problem {
	case "unknown":
		what = "compare it with the host's own key (ssh-keygen -lf /etc/ssh/ssh_host_…_key.pub there), then pin it"
	case "revoked":
		what = "do not trust this host until it has a new key, then pin that key"
	case ProblemOther:
		return "find out whether another machine answers at that address, or the host key was replaced"
	case "certificate":
		what = "sign a new one, or pin the host's key"
	}
	return what + ":\n" + e.Scan
}

func (e *HostKeyError) Unwrap() error { return e.Err }

// pin is one inline host key: the whole key or its fingerprint.
type pin struct {
	key         ssh.PublicKey
	fingerprint string
}

const takeLine = "take a line that bowline host scan prints"

// parsePin parses "ssh-ed25519 AAAA… [comment]" or "SHA256:…".
func parsePin(line string) (pin, error) {
	line = strings.TrimSpace(line)
	if digest, ok := strings.CutPrefix(line, "SHA256:"); ok {
		sum, err := base64.RawStdEncoding.Strict().DecodeString(digest)
		// The decoder skips line ends, but a fingerprint must not contain any.
		if err != nil || len(sum) != sha256.Size || strings.ContainsAny(digest, "\r\n") {
			return pin{}, hint.Add(fmt.Errorf("host key %q is not a fingerprint", line), "write SHA256: and 43 characters, as ssh-keygen -lf prints it")
		}
		return pin{fingerprint: line}, nil
	}
	fields := strings.Fields(line)
	if len(fields) < 2 {
		return pin{}, hint.Add(fmt.Errorf("host key %q is neither \"ssh-ed25519 AAAA…\" nor \"SHA256:…\"", line), takeLine)
	}
	wire, err := base64.StdEncoding.DecodeString(fields[1])
	if err != nil {
		return pin{}, hint.Add(fmt.Errorf("host key %q: what follows %s is not base64", line, fields[0]), takeLine)
	}
	key, err := ssh.ParsePublicKey(wire)
	if err != nil {
		return pin{}, fmt.Errorf("host key %q: %w", line, err)
	}
	if key.Type() != fields[0] {
		return pin{}, fmt.Errorf("host key %q says %s and holds a key of type %s", line, fields[0], key.Type())
	}
	if _, ok := key.(*ssh.Certificate); ok || len(algorithmsOf(key.Type())) == 0 {
		return pin{}, hint.Add(fmt.Errorf("host key %q: a key of type %s cannot be pinned", line, key.Type()), "take ssh-ed25519, ecdsa or rsa")
	}
	return pin{key: key, fingerprint: ssh.FingerprintSHA256(key)}, nil
}

// keyTypes are the accepted types of host keys, the preferred first.
var keyTypes = []string{ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521, ssh.KeyAlgoRSA}

// algorithmsOf are the accepted signature algorithms of a key type; none with SHA-1.
func algorithmsOf(keyType string) []string {
	switch keyType {
	case ssh.KeyAlgoRSA:
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521:
		return []string{keyType}
	}
	return nil
}

var certificateAlgorithms = []string{ssh.CertAlgoED25519v01, ssh.CertAlgoECDSA256v01, ssh.CertAlgoECDSA384v01,
	ssh.CertAlgoECDSA521v01, ssh.CertAlgoRSASHA512v01, ssh.CertAlgoRSASHA256v01}

// pins is everything that is pinned for one host.
type pins struct {
	host   string // HostKeyName
	scan   string
	inline []pin
	files  ssh.HostKeyCallback // nil without known_hosts files
	// algorithms are those of the pinned keys, so that a server with several keys presents a
	// pinned one.
	algorithms []string
	types      []string // of keys, without those of certificates
	known      []string // names of what is pinned, for errors
	looked     []string // names of the files, for errors
}

// pins reads the pinned host keys of t, except those of the types in without: see
// Client.HostKeyTypes.
func (t *Target) pins(without []string) (*pins, error) {
	p := &pins{host: t.HostKeyName, scan: t.scanCommand()}
	types := map[string]bool{}
	authority := false
	for _, line := range t.HostKeys {
		one, err := parsePin(line)
		if err != nil {
			return nil, err
		}
		p.inline = append(p.inline, one)
		if one.key != nil {
			types[one.key.Type()] = true
			p.known = append(p.known, one.key.Type()+" "+one.fingerprint)
			continue
		}
		p.known = append(p.known, one.fingerprint)
		for _, k := range keyTypes { // its type is unknown
			types[k] = true
		}
	}
	known, err := p.readKnownHosts(t.KnownHosts)
	if err != nil {
		return nil, err
	}
	for _, k := range known {
		name := k.name()
		if authority = authority || k.authority; k.authority {
			name = "the authority " + name
		} else {
			types[k.Key.Type()] = true
		}
		if !k.portless {
			p.known = append(p.known, name)
		}
	}
	if authority {
		p.algorithms = append(p.algorithms, certificateAlgorithms...)
	}
	for _, k := range keyTypes {
		if types[k] && !slices.Contains(without, k) {
			p.types = append(p.types, k)
			p.algorithms = append(p.algorithms, algorithmsOf(k)...)
		}
	}
	if len(p.algorithms) == 0 {
		// Nothing is pinned: let the server present any key, so that the error can name it.
		for _, k := range keyTypes {
			p.algorithms = append(p.algorithms, algorithmsOf(k)...)
		}
	}
	return p, nil
}

// knownKey is a line of known_hosts that applies to the host.
type knownKey struct {
	knownhosts.KnownKey
	authority bool
	portless  bool // the line is for the name without the port
}

func (k knownKey) name() string {
	return fmt.Sprintf("%s %s (%s:%d)", k.Key.Type(), ssh.FingerprintSHA256(k.Key), k.Filename, k.Line)
}

// names are the names to look up in the files: if the port is not 22 and nothing is found for
// it, the name without the port, as ssh does. "@cert-authority *" thereby applies to all ports.
func (p *pins) names() []string {
	names := []string{p.host}
	if host, port, err := net.SplitHostPort(p.host); err == nil && port != "22" {
		names = append(names, net.JoinHostPort(host, "22"))
	}
	return names
}

// readKnownHosts sets p.files and returns the lines for the host.
func (p *pins) readKnownHosts(files []string) ([]knownKey, error) {
	var present []string
	for _, f := range files {
		if exists(f) {
			present = append(present, f)
			p.looked = append(p.looked, f)
		} else {
			p.looked = append(p.looked, f+" (missing)")
		}
	}
	if len(present) == 0 {
		return nil, nil
	}
	check, err := knownhosts.New(present...)
	if err != nil {
		return nil, hint.Add(fmt.Errorf("known_hosts: %w", err), "correct the line, or name another file")
	}
	p.files = check
	// A key that does not exist makes the package return the keys that it expects.
	unknown, err := ssh.NewPublicKey(ed25519.PublicKey(make([]byte, ed25519.PublicKeySize)))
	if err != nil {
		return nil, err
	}
	var known []knownKey
	for i, name := range p.names() {
		var wants *knownhosts.KeyError
		if !errors.As(check(name, nowhere, unknown), &wants) {
			continue
		}
		for _, k := range wants.Want {
			data, err := readFile(k.Filename)
			if err != nil {
				return nil, fmt.Errorf("known_hosts: %w", err)
			}
			lines := bytes.Split(data, []byte("\n"))
			authority := k.Line <= len(lines) && bytes.HasPrefix(bytes.TrimLeft(lines[k.Line-1], " \t"), []byte("@cert-authority"))
			known = append(known, knownKey{k, authority, i > 0})
		}
		if len(known) > 0 {
			break
		}
	}
	return known, nil
}

// nowhere stands for the remote address, which is not checked: a host is identified by its name,
// whichever jump host it is behind.
var nowhere = &net.TCPAddr{IP: net.IPv4zero}

// check is the ssh.HostKeyCallback. It cannot be disabled.
func (p *pins) check(_ string, _ net.Addr, key ssh.PublicKey) error {
	fail := &HostKeyError{Host: p.host, Type: key.Type(), Fingerprint: ssh.FingerprintSHA256(key), Known: p.known, Problem: "changed", Files: p.looked, Scan: p.scan}
	var err error
	if p.files != nil {
		for _, name := range p.names() {
			err = p.files(name, nowhere, key)
			var revoked *knownhosts.RevokedError
			if errors.As(err, &revoked) {
				fail.Problem, fail.Known = "revoked", []string{fmt.Sprintf("%s:%d", revoked.Revoked.Filename, revoked.Revoked.Line)}
				return fail
			}
			if err == nil {
				return nil
			}
			if len(p.known) > 0 {
				break
			}
		}
	}
	for _, one := range p.inline {
		if _, ok := key.(*ssh.Certificate); !ok && one.fingerprint == fail.Fingerprint {
			return nil
		}
	}
	if c, ok := key.(*ssh.Certificate); ok {
		fail.Problem, fail.Fingerprint, fail.Err = "certificate", ssh.FingerprintSHA256(c.Key), err
		if err == nil {
			fail.Err = errors.New("no authority is pinned")
		}
		return fail
	}
	if len(p.known) == 0 {
		fail.Problem = "unknown"
	}
	return fail
}

// scanCommand is the command that shows the host's keys.
func (t *Target) scanCommand() string {
	return "bowline host scan " + strings.TrimSuffix(t.Address, ":22")
}
