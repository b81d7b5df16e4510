package enroll

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// hostKeys are the machine's: those given by a flag, those that the person's known_hosts
// have, or those that the person confirms.
func (e *Enroller) hostKeys(ctx context.Context, m Machine, flag string, given []string, u endpoint.URL) ([]string, error) {
	keys, err := m.Scan(ctx)
	if err != nil {
		return nil, fmt.Errorf("%w: is it the right address, and does its sshd listen?", err)
	}
	if len(given) > 0 {
		keys = slices.DeleteFunc(keys, func(k ssh.PublicKey) bool { return !known(given, k) })
		if len(keys) == 0 {
			return nil, fmt.Errorf("%s presents none of the keys given by %s: it was reinstalled, or someone is in between; nothing was made", u.Host, flag)
		}
		e.Reporter.Show(presents(u.Host+" presents", keys))
		e.step("The host key is the one that was given.")
		return lines(keys), nil
	}
	trusted, err := m.Known(keys)
	var other *endpoint.HostKeyError
	switch {
	case errors.As(err, &other):
		return nil, fmt.Errorf("%w; nothing was made: if you know of the change, remove the line from known_hosts, or give the key by %s", err, flag)
	case err != nil:
		e.step("Your known_hosts files are not used: %v", err)
	case len(trusted) > 0:
		e.Reporter.Show(presents(u.Host+" presents", trusted))
		e.step("The host key is in your known_hosts.")
		return lines(trusted), nil
	}
	e.Reporter.Show(presents(fmt.Sprintf("The authenticity of host '%s' can't be established. It presents", u.Host), keys) +
		"The machine's own are shown there by: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n")
	yes, err := e.Asker.Confirm(ctx, "Are you sure you want to continue connecting?")
	switch {
	case errors.Is(err, ErrNobody):
		return nil, fmt.Errorf("the host key has to be confirmed, and standard input is not a terminal: give the key by %s, or accept the one presented by --yes; nothing was made", flag)
	case err != nil:
		return nil, err
	case !yes:
		return nil, errors.New("the host key was not confirmed; nothing was made")
	}
	return lines(keys), nil
}

// presents are the fingerprints of keys below a heading.
func presents(heading string, keys []ssh.PublicKey) string {
	var text strings.Builder
	fmt.Fprintln(&text, heading)
	for _, k := range keys {
		fmt.Fprintf(&text, "  %s %s\n", k.Type(), ssh.FingerprintSHA256(k))
	}
	return text.String()
}

// lines are the keys as a Host has them.
func lines(keys []ssh.PublicKey) []string {
	var pins []string
	for _, k := range keys {
		pins = append(pins, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))))
	}
	return pins
}

// known: lines are "TYPE BASE64 …" or fingerprints.
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
