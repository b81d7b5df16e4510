package hostadmin

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// hostKeys are the trusted host keys of the machine: those given by a flag, those in the user's
// known_hosts, or those that the user confirms.
func (e *Editor) hostKeys(ctx context.Context, m Machine, flag string, given []string, u endpoint.URL) ([]string, error) {
	keys, err := m.Scan(ctx)
	if err != nil {
		return nil, hint.Add(err, "check the address, and that its sshd listens")
	}
	if len(given) > 0 {
		keys = slices.DeleteFunc(keys, func(k ssh.PublicKey) bool { return !known(given, k) })
		if len(keys) == 0 {
			return nil, hint.Add(fmt.Errorf("%s presents none of the keys of %s; nothing was created", u.Host, flag),
				"find out whether the host was reinstalled, or someone intercepts the connection")
		}
		e.Reporter.Show(presents(u.Host+" presents", keys))
		e.step("The host key matches the given one.")
		return lines(keys), nil
	}
	trusted, err := m.Known(keys)
	var other *endpoint.HostKeyError
	switch {
	case errors.As(err, &other):
		return nil, hint.Add(fmt.Errorf("%v; nothing was created", err), "if you expect the change, remove the line from known_hosts, or set the key with %s", flag)
	case err != nil:
		e.step("Your known_hosts files are not used: %v", err)
	case len(trusted) > 0:
		e.Reporter.Show(presents(u.Host+" presents", trusted))
		e.step("The host key is in your known_hosts.")
		return lines(trusted), nil
	}
	e.Reporter.Show(presents(fmt.Sprintf("The authenticity of host '%s' can't be established. It presents", u.Host), keys) +
		"To see the host's own key, run on the host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n")
	yes, err := e.Asker.Confirm(ctx, "Are you sure you want to continue connecting?")
	switch {
	case errors.Is(err, ErrCannotAsk):
		return nil, hint.Add(errors.New("cannot ask you to confirm the host key, as standard input is not a terminal; nothing was created"),
			"set the key with %s, or accept the presented key with --yes", flag)
	case err != nil:
		return nil, err
	case !yes:
		return nil, errors.New("the host key was not confirmed; nothing was created")
	}
	return lines(keys), nil
}

// presents lists the fingerprints of keys below a heading.
func presents(heading string, keys []ssh.PublicKey) string {
	var text strings.Builder
	fmt.Fprintln(&text, heading)
	for _, k := range keys {
		fmt.Fprintf(&text, "  %s %s\n", k.Type(), ssh.FingerprintSHA256(k))
	}
	return text.String()
}

// lines are the keys in the format of a Host.
func lines(keys []ssh.PublicKey) []string {
	var pins []string
	for _, k := range keys {
		pins = append(pins, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))))
	}
	return pins
}

// known reports whether lines have the key. A line is "TYPE BASE64 …" or a fingerprint.
func known(lines []string, key ssh.PublicKey) bool {
	for _, line := range lines {
		if line == ssh.FingerprintSHA256(key) {
			return true
		}
		if k, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line)); err == nil && bytes.Equal(k.Marshal(), key.Marshal()) {
			return true
		}
	}
	return false
}
