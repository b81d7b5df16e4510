// Package endpoint resolves ssh://user@host[:port]/path, and an ssh_config if one is named, to a
// Target: the address, user, keys, jump hosts and pinned host keys. It reads files and asks an
// agent; except in Scan it dials no host.
package endpoint

import (
	"errors"
	"fmt"
	"net/netip"
	"path"
	"strconv"
	"strings"

	"github.com/bowline-k8s/bowline/hint"
)

// URL is a parsed endpoint, before ssh_config, known_hosts and keys are read.
type URL struct {
	User   string // empty if the URL has none
	Host   string // a name, an alias of ssh_config or an address without brackets
	Port   int    // 0 if the URL has none
	Socket string // absolute path on the host
}

// String is the URL in the syntax of Parse.
func (u URL) String() string {
	host := u.Host
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if u.User != "" {
		host = u.User + "@" + host
	}
	if u.Port != 0 {
		host += ":" + strconv.Itoa(u.Port)
	}
	return "ssh://" + host + u.Socket
}

// maxSocket is the length of sun_path in Linux, without its final zero.
const maxSocket = 107

// Parse parses ssh://[user@]host[:port]/absolute/socket/path. Its errors never repeat what may
// be a password.
func Parse(raw string) (URL, error) {
	rest, err := cutScheme(raw)
	if err != nil {
		return URL{}, err
	}
	authority, socket := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, socket = rest[:i], rest[i:]
	}
	u, err := parseAuthority(authority)
	if err != nil {
		return URL{}, err
	}
	if err := checkSocket(socket, u.Host); err != nil {
		return URL{}, err
	}
	u.Socket = socket
	return u, nil
}

func cutScheme(raw string) (string, error) {
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		return "", hint.Add(errors.New("the endpoint has no scheme"), "write ssh://user@host/path/of/the.sock")
	}
	if scheme != "ssh" {
		// If it is not a scheme, the text before :// may be anything, even a password.
		if !plain(scheme, "+") {
			scheme = "what stands there"
		}
		return "", hint.Add(fmt.Errorf("the endpoint's scheme is %s", scheme), "use ssh:// for a remote host")
	}
	return rest, nil
}

// parseAuthority parses [user@]host[:port], as in a URL or in ProxyJump.
func parseAuthority(s string) (URL, error) {
	var u URL
	host := s
	if i := strings.LastIndexByte(s, '@'); i >= 0 {
		u.User, host = s[:i], s[i+1:]
		if strings.Contains(u.User, ":") {
			return URL{}, hint.Add(errors.New("the endpoint has a password in it"), "remove it, and log in with a key")
		}
		if err := checkUser(u.User); err != nil {
			return URL{}, err
		}
	}
	var port string
	var hasPort bool
	if bracketed, ok := strings.CutPrefix(host, "["); ok {
		inside, after, found := strings.Cut(bracketed, "]")
		if a, err := netip.ParseAddr(inside); !found || err != nil || !a.Is6() {
			return URL{}, hint.Add(errors.New("the endpoint's host starts with [ but is no IPv6 address in brackets"), "write it as in [fd00::7]")
		}
		host = inside
		if after != "" {
			if port, hasPort = strings.CutPrefix(after, ":"); !hasPort {
				return URL{}, fmt.Errorf("the endpoint has something other than :port after [%s]", inside)
			}
		}
	} else {
		if host, port, hasPort = strings.Cut(host, ":"); strings.Contains(port, ":") {
			return URL{}, hint.Add(errors.New("the endpoint's host has several colons"), "put an IPv6 address in brackets, as in [fd00::7]")
		}
		if host == "" {
			return URL{}, hint.Add(errors.New("the endpoint has no host"), "write ssh://user@host/path/of/the.sock")
		}
		if !plain(host, "_-") || host[0] == '-' {
			return URL{}, fmt.Errorf("the endpoint's host %q is neither a name nor an address", host)
		}
	}
	u.Host = host
	if hasPort {
		n, err := parsePort(port)
		if err != nil {
			return URL{}, fmt.Errorf("the endpoint of %s: %w", host, err)
		}
		u.Port = n
	}
	return u, nil
}

func parsePort(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n < 1 || n > 65535 || s[0] == '0' {
		return 0, fmt.Errorf("port %q is not a number from 1 to 65535", s)
	}
	return int(n), nil
}

// checkUser refuses characters that no account name has, or that a URL would escape.
func checkUser(user string) error {
	if user == "" {
		return errors.New("the endpoint has an @ but no user before it")
	}
	for _, r := range user {
		if r <= ' ' || r == 0x7f || strings.ContainsRune(`%?#"'\/`+"`", r) {
			return fmt.Errorf("the endpoint's user has the invalid character %q", r)
		}
	}
	if user[0] == '-' {
		return errors.New("the endpoint's user starts with a dash")
	}
	return nil
}

func checkSocket(socket, host string) error {
	switch {
	case socket == "" || socket == "/":
		return hint.Add(fmt.Errorf("the endpoint of %s names no socket", host), "write its absolute path after the host, as in ssh://user@%s/run/containerd/containerd.sock", host)
	case strings.ContainsAny(socket, "%?#\x00\n\r"):
		return hint.Add(fmt.Errorf("the endpoint of %s has %%, ? or # in the path of the socket", host), "write the plain path: escapes and queries are not supported")
	case path.Clean(socket) != socket:
		return hint.Add(fmt.Errorf("the endpoint of %s has the path %q", host, socket), "write it as %q", path.Clean(socket))
	case len(socket) > maxSocket:
		return fmt.Errorf("the endpoint of %s has a path of %d bytes: a socket's is at most %d", host, len(socket), maxSocket)
	}
	return nil
}

// plain reports whether s consists of letters, digits, dots and the characters of also.
func plain(s, also string) bool {
	for _, r := range s {
		if !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || strings.ContainsRune(also, r)) {
			return false
		}
	}
	return s != ""
}

// parseJumps parses the value of ProxyJump: [user@]host[:port] or ssh://…, separated by commas,
// the first to be dialled first; none for "none".
func parseJumps(s string) ([]URL, error) {
	if strings.EqualFold(s, "none") {
		return nil, nil
	}
	var jumps []URL
	for _, one := range strings.Split(s, ",") {
		one = strings.TrimSpace(one)
		if strings.Contains(one, "://") {
			rest, err := cutScheme(one)
			if err != nil {
				return nil, fmt.Errorf("jump: %w", err)
			}
			one = strings.TrimSuffix(rest, "/")
		}
		u, err := parseAuthority(one)
		if err != nil {
			return nil, fmt.Errorf("jump: %w", err)
		}
		jumps = append(jumps, u)
	}
	return jumps, nil
}
