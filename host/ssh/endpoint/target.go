package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/bowline-k8s/bowline/hint"
)

// Target is one host to log in to. Its files are read again for each connection, so a key or a
// known_hosts file may change while the process runs.
type Target struct {
	// Name is the host as the user wrote it: an alias, a name or an address.
	Name string
	// Address is the address to dial, "host:port"; the last jump host resolves the name.
	Address string
	// HostKeyName is the "host:port" of the host in known_hosts files.
	HostKeyName string
	User        string
	// Socket is the socket of the endpoint, an absolute path on the host; empty for a jump host.
	Socket string

	Credentials
	// IdentityFiles are private keys (or the .pub of a key in the agent), tried in this order;
	// missing ones are skipped.
	IdentityFiles []string
	// CertificateFiles are OpenSSH user certificates, matched to their keys; key-cert.pub next
	// to a key is found automatically.
	CertificateFiles []string
	// IdentitiesOnly offers no key of the agent except those that a file names.
	IdentitiesOnly bool

	// KnownHosts are known_hosts files; missing ones are skipped.
	KnownHosts []string
	// HostKeys pin the host's keys: "ssh-ed25519 AAAA…" or "SHA256:…". Together with KnownHosts,
	// a key in either is accepted.
	HostKeys []string

	// Jumps are the jump hosts, the first to be dialled first. They have no Jumps themselves.
	Jumps []Target
}

// String is user@host:port, for logs and errors.
func (t *Target) String() string { return t.User + "@" + t.Address }

// Credentials log in to the host and to every jump host. The zero value has none.
type Credentials struct {
	Key            Secret // a private key, OpenSSH or PEM
	KeyFile        string // or the file of one; it must exist
	Passphrase     Secret // of encrypted keys
	PassphraseFile string // or the file of one, whose last newline is dropped
	Certificate    []byte // an OpenSSH user certificate for one of the keys
	AgentSocket    string // path of an ssh-agent's socket
	// Source, if not nil, provides Key, Passphrase and Certificate at each login, instead of
	// those here. Its error is an *AuthError if a retry soon after does not help.
	Source func(context.Context) (Login, error) `json:"-"`
}

// Login is the result of a Source of Credentials.
type Login struct {
	Key         Secret // a private key, OpenSSH or PEM
	Passphrase  Secret // of the key, if it is encrypted
	Certificate []byte // an OpenSSH user certificate for it; may be empty
}

// Secret is never printed: fmt and encoding/json show a placeholder.
type Secret []byte

func (Secret) String() string               { return "(secret)" }
func (Secret) Format(f fmt.State, _ rune)   { io.WriteString(f, "(secret)") }
func (Secret) MarshalText() ([]byte, error) { return []byte("(secret)"), nil }

// Options are the settings that the URL does not contain. The zero value reads no files.
type Options struct {
	// ConfigFile is an ssh_config; none by default. HostName, User, Port, IdentityFile,
	// CertificateFile, IdentitiesOnly, IdentityAgent, ProxyJump, UserKnownHostsFile and
	// HostKeyAlias are read from it, for the URL's host and for the jump hosts. As in ssh,
	// ~/.ssh/id_* and the usual known_hosts files apply if it names none and Credentials are
	// empty.
	ConfigFile string
	// Home replaces ~ in ConfigFile; the home of the process by default.
	Home string
	// Credentials are tried before the keys that ConfigFile names.
	Credentials Credentials
	// KnownHosts are known_hosts files for the host and the jump hosts; they replace
	// UserKnownHostsFile.
	KnownHosts []string
	// HostKeys pin the host, not the jump hosts: "ssh-ed25519 AAAA…" or "SHA256:…".
	HostKeys []string
	// ProxyJump replaces that of ConfigFile: [user@]host[:port],…, or "none".
	ProxyJump string
	// JumpHostKeys pin the jump hosts of ProxyJump and of ConfigFile, in addition to KnownHosts.
	JumpHostKeys []string
	// Jumps replace ProxyJump: each has its own host keys, and no known_hosts file applies to
	// it.
	Jumps []Jump
}

// Jump is a jump host, with the only host keys that are accepted from it.
type Jump struct {
	User, Address string // Address is a name or an IP address
	Port          int    // 22 if 0
	HostKeys      []string
}

// String is user@host[:port], as in ProxyJump.
func (j Jump) String() string {
	u := URL{User: j.User, Host: j.Address, Port: j.Port}
	return strings.TrimPrefix(u.String(), "ssh://")
}

// Check returns an error, in one sentence, if j is not valid.
func (j Jump) Check() error {
	_, err := j.url()
	return err
}

func (j Jump) url() (URL, error) {
	if j.User == "" {
		return URL{}, fmt.Errorf("the jump %s has no user", j.Address)
	}
	if strings.HasPrefix(j.Address, "[") {
		return URL{}, hint.Add(fmt.Errorf("the jump's address %q has brackets", j.Address), "write an IPv6 address without brackets")
	}
	if j.Port < 0 || j.Port > 65535 {
		return URL{}, fmt.Errorf("the jump %s has the port %d: 1 to 65535", j.Address, j.Port)
	}
	u, err := parseAuthority(j.String())
	if err != nil {
		return URL{}, fmt.Errorf("the jump %s: %w", j.Address, err)
	}
	if len(j.HostKeys) == 0 {
		return URL{}, hint.Add(fmt.Errorf("the jump %s has no host keys", j.Address), "print them: bowline host scan %s", j.Address)
	}
	for _, line := range j.HostKeys {
		if _, err := parsePin(line); err != nil {
			return URL{}, fmt.Errorf("the jump %s: %w", j.Address, err)
		}
	}
	return u, nil
}

// Resolve parses an ssh:// URL and completes it. An error is one sentence that says what to
// write. Target.Client, not Resolve, reads the keys; Resolve only checks the syntax of pinned
// host keys.
func Resolve(raw string, o Options) (*Target, error) {
	u, err := Parse(raw)
	if err != nil {
		return nil, err
	}
	if o.Home == "" {
		o.Home, _ = os.UserHomeDir()
	}
	if len(o.Jumps) > 0 {
		if o.ProxyJump != "" {
			return nil, hint.Add(errors.New("both ProxyJump and jumps with host keys are set"), "remove one of them")
		}
		o.ProxyJump = "none"
	}
	t, err := o.resolve(u, o.ProxyJump, nil)
	if err != nil {
		return nil, err
	}
	for i := range t.Jumps {
		t.Jumps[i].HostKeys = o.JumpHostKeys
	}
	for _, j := range o.Jumps {
		u, err := j.url()
		if err != nil {
			return nil, err
		}
		hop, err := o.resolve(u, "none", nil)
		if err != nil {
			return nil, err
		}
		hop.HostKeys, hop.KnownHosts = j.HostKeys, nil
		t.Jumps = append(t.Jumps, *hop)
	}
	t.Socket, t.HostKeys = u.Socket, o.HostKeys
	for _, line := range slices.Concat(o.HostKeys, o.JumpHostKeys) {
		if _, err := parsePin(line); err != nil {
			return nil, err
		}
	}
	return t, nil
}

// resolve completes one host and its jump hosts. jump overrides ConfigFile's ProxyJump; via are
// the aliases that led here, to detect a cycle.
func (o Options) resolve(u URL, jump string, via []string) (*Target, error) {
	if slices.Contains(via, u.Host) {
		return nil, hint.Add(fmt.Errorf("ProxyJump goes in a circle: %s", strings.Join(append(via, u.Host), " by ")),
			"give %s the line \"ProxyJump none\"", u.Host)
	}
	s := new(settings)
	if o.ConfigFile != "" {
		var err error
		if s, err = readConfig(o.ConfigFile, u.Host, o.Home); err != nil {
			return nil, err
		}
	}
	t := &Target{Name: u.Host, User: u.User, Credentials: o.Credentials}
	if err := o.fill(t, u, s); err != nil {
		return nil, fmt.Errorf("%s: %w", u.Host, err)
	}
	if jump == "" {
		if s.proxyCommand != "" && !strings.EqualFold(s.proxyCommand, "none") {
			return nil, hint.Add(fmt.Errorf("%s: ProxyCommand is not run", u.Host), "write a ProxyJump before it in %s, or in the configuration of the host", o.ConfigFile)
		}
		jump = s.proxyJump
	}
	if jump == "" {
		return t, nil
	}
	jumps, err := parseJumps(jump)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", u.Host, err)
	}
	for i, j := range jumps {
		// The first is reached as ssh_config says, each other one through the one before.
		of, seen := "none", []string(nil)
		if i == 0 {
			of, seen = "", append(slices.Clone(via), u.Host)
		}
		hop, err := o.resolve(j, of, seen)
		if err != nil {
			return nil, err
		}
		t.Jumps = append(append(t.Jumps, hop.Jumps...), *hop)
		t.Jumps[len(t.Jumps)-1].Jumps = nil
	}
	return t, nil
}

// fill sets all of t except the jump hosts.
func (o Options) fill(t *Target, u URL, s *settings) error {
	host, port := u.Host, u.Port
	var err error
	if s.hostName != "" {
		if host, err = expand(s.hostName, map[byte]string{'h': u.Host, '%': "%"}); err != nil {
			return fmt.Errorf("HostName: %w", err)
		}
	}
	if port == 0 && s.port != "" {
		if port, err = parsePort(s.port); err != nil {
			return err
		}
	}
	if port == 0 {
		port = 22
	}
	if t.User == "" {
		t.User = s.user
	}
	if t.User == "" {
		return hint.Add(errors.New("no user is set"), "use ssh://user@host/…, or a User line in the configured ssh_config")
	}
	t.Address = net.JoinHostPort(host, strconv.Itoa(port))
	t.HostKeyName = strings.ToLower(t.Address) // as ssh writes names to known_hosts
	if s.hostKeyAlias != "" {
		t.HostKeyName = net.JoinHostPort(s.hostKeyAlias, "22")
	}
	t.IdentitiesOnly = strings.EqualFold(s.identitiesOnly, "yes") || strings.EqualFold(s.identitiesOnly, "true")

	tokens := map[byte]string{'%': "%", 'd': o.Home, 'h': host, 'n': u.Host, 'p': strconv.Itoa(port), 'r': t.User}
	if me, err := user.Current(); err == nil {
		tokens['u'], tokens['i'] = me.Username, me.Uid
	}
	files := func(keyword string, values []string) ([]string, error) {
		var out []string
		for _, v := range values {
			if v, err = expandEnv(v); err == nil {
				v, err = expand(v, tokens)
			}
			if err == nil {
				v, err = expandHome(v, o.Home)
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", keyword, err)
			}
			out = append(out, v)
		}
		return out, nil
	}
	if t.IdentityFiles, err = files("IdentityFile", s.identityFiles); err != nil {
		return err
	}
	if t.CertificateFiles, err = files("CertificateFile", s.certificateFiles); err != nil {
		return err
	}
	if agent := s.identityAgent; agent != "" && t.AgentSocket == "" {
		switch {
		case strings.EqualFold(agent, "none"):
		case agent == "SSH_AUTH_SOCK":
			t.AgentSocket = os.Getenv(agent)
		case agent[0] == '$' && !strings.HasPrefix(agent, "${"):
			t.AgentSocket = os.Getenv(agent[1:])
		default:
			one, err := files("IdentityAgent", []string{agent})
			if err != nil {
				return err
			}
			t.AgentSocket = one[0]
		}
	}
	return o.fillDefaults(t, s, files)
}

// fillDefaults adds the known_hosts files, and ssh's defaults of the settings that the ssh_config
// does not contain.
func (o Options) fillDefaults(t *Target, s *settings, files func(string, []string) ([]string, error)) error {
	var err error
	switch {
	case len(o.KnownHosts) > 0:
		t.KnownHosts = o.KnownHosts
	case s.userKnownHostsSet:
		var named []string
		for _, f := range s.userKnownHosts {
			if !strings.EqualFold(f, "none") {
				named = append(named, f)
			}
		}
		if t.KnownHosts, err = files("UserKnownHostsFile", named); err != nil {
			return err
		}
	case o.ConfigFile != "" && o.Home != "":
		t.KnownHosts = []string{filepath.Join(o.Home, ".ssh/known_hosts"), filepath.Join(o.Home, ".ssh/known_hosts2"), "/etc/ssh/ssh_known_hosts"}
	}
	if o.ConfigFile != "" && o.Home != "" && len(t.IdentityFiles) == 0 && !s.identityFilesNone && len(t.Key) == 0 && t.KeyFile == "" && t.Source == nil {
		for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
			if f := filepath.Join(o.Home, ".ssh", name); exists(f) {
				t.IdentityFiles = append(t.IdentityFiles, f)
			}
		}
	}
	return nil
}
