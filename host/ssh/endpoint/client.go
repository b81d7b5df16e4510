package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Client is what one login needs.
type Client struct {
	// Config is for ssh.NewClientConn, with HostKeyName as its address.
	Config *ssh.ClientConfig

	target   *Target
	pins     *pins
	ring     *keyring
	rejected *HostKeyError
	accepted bool // the host key was
}

// AuthError says that the machine refused every key, or that there is none that
// could be offered; it is of no use to try again soon.
type AuthError struct{ msg string }

func (e *AuthError) Error() string { return e.msg }

// NewAuthError is for a Credentials' Source that knows no login.
func NewAuthError(msg string) *AuthError { return &AuthError{msg} }

// Client reads the keys and the pinned host keys of t, as they are now. Close must
// be called when the login is over. The types of host keys in without are not asked
// for; see HostKeyTypes. Its errors are *AuthError, but for a host key that
// cannot be read, and those of Source.
func (t *Target) Client(ctx context.Context, without ...string) (*Client, error) {
	p, err := t.pins(without)
	if err != nil {
		return nil, err
	}
	if t.Source != nil {
		given, err := t.Source(ctx)
		if err != nil {
			return nil, err
		}
		with := *t
		with.Source, with.Key, with.Passphrase, with.Certificate = nil, given.Key, given.Passphrase, given.Certificate
		t = &with
	}
	ring, err := t.keyring(ctx)
	if err != nil {
		return nil, &AuthError{err.Error()}
	}
	c := &Client{target: t, pins: p, ring: ring}
	c.Config = &ssh.ClientConfig{
		User:              t.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(ring.signers...)},
		HostKeyAlgorithms: p.algorithms,
		ClientVersion:     "SSH-2.0-Bowline",
	}
	c.Config.HostKeyCallback = func(host string, addr net.Addr, key ssh.PublicKey) error {
		err := p.check(host, addr, key)
		if !errors.As(err, &c.rejected) {
			c.accepted = err == nil
		}
		return err
	}
	return c, nil
}

// Close lets go of the agent.
func (c *Client) Close() { c.ring.close() }

// HostKeyTypes are what to pass to Target.Client for the next try after err: the
// types of keys that the server presented in vain, while a key of another type may
// be the pinned one. That is so with fingerprints, whose type is not known, and
// where one of several pinned keys was replaced. Nil where no other type is left.
func (c *Client) HostKeyTypes(err error, before []string) []string {
	var he *HostKeyError
	if !errors.As(err, &he) || he.Problem != "changed" || !slices.Contains(c.pins.types, he.Type) || len(c.pins.types) == 1 {
		return nil
	}
	return append(slices.Clone(before), he.Type)
}

// Explain turns the error of ssh.NewClientConn into a *HostKeyError or an
// *AuthError where it is one, and returns it as it is otherwise.
func (c *Client) Explain(err error) error {
	if err == nil {
		return nil
	}
	if c.rejected != nil {
		return c.rejected
	}
	var negotiation *ssh.AlgorithmNegotiationError
	if errors.As(err, &negotiation) && strings.Contains(negotiation.What, "host key") {
		return &HostKeyError{Host: c.pins.host, Known: c.pins.known, Problem: "changed", Scan: c.pins.scan}
	}
	// The package has no kinds for these. They come after the host key; 2 is what
	// sshd says after too many keys, 14 that no other method is left.
	text := err.Error()
	if c.accepted && (strings.Contains(text, "unable to authenticate") || strings.Contains(text, "ssh: disconnect, reason 2:") ||
		strings.Contains(text, "ssh: disconnect, reason 14:")) {
		return &AuthError{fmt.Sprintf("%s refuses the login with %s: add one of them to its authorized_keys, or configure the key that is there (%s)",
			c.target, strings.Join(c.ring.names(), ", "), strings.TrimPrefix(text, "ssh: handshake failed: "))}
	}
	return err
}
