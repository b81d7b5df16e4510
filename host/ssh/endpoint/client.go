package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/crypto/ssh"
	"k8s.io/klog/v2"
)

// Client is what one login needs.
type Client struct {
	// Config is for ssh.NewClientConn, with HostKeyName as its address.
	Config *ssh.ClientConfig

	target   *Target
	pins     *pins
	ring     *keyring
	rejected *HostKeyError
	accepted bool   // the host key was
	hostKey  string // the fingerprint of the accepted one
	required string // the only one to accept; empty: any that is pinned
}

// AuthError says that the machine refused every key, or that there is none that
// could be offered; it is of no use to try again soon.
type AuthError struct{ msg string }

func (e *AuthError) Error() string { return e.msg }

// NewAuthError is for a Credentials' Source that knows no login.
func NewAuthError(msg string) *AuthError { return &AuthError{msg} }

// UnexpectedError says that what answers at an address did not come to show a host key.
// It repeats nothing of the answer: where a Host's status has this error, whoever may
// make Hosts would read by it what listens in Bowline's network. What there is to tell
// is in Cause, for the log.
type UnexpectedError struct {
	Address string
	Cause   error
}

func (e *UnexpectedError) Error() string {
	return "what answers at " + e.Address + " is not an SSH server that shows a host key (the log says more with -v=2)"
}

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
	klog.FromContext(ctx).V(4).Info("Logging in by SSH", "target", t.String(), "keys", ring.names(), "passedOver", ring.notes,
		"hostKeyAlgorithms", p.algorithms, "pinned", p.known, "knownHosts", p.looked)
	c := &Client{target: t, pins: p, ring: ring}
	c.Config = &ssh.ClientConfig{
		User:              t.User,
		Auth:              []ssh.AuthMethod{ssh.PublicKeys(ring.signers...)},
		HostKeyAlgorithms: p.algorithms,
		ClientVersion:     "SSH-2.0-Bowline",
	}
	c.Config.HostKeyCallback = func(host string, addr net.Addr, key ssh.PublicKey) error {
		err := p.check(host, addr, key)
		if err == nil {
			err = c.checkRequired(key)
		}
		if !errors.As(err, &c.rejected) {
			c.accepted = err == nil
		}
		return err
	}
	return c, nil
}

// Require accepts one host key alone, "SHA256:…", and that only if it is pinned.
func (c *Client) Require(fingerprint string) { c.required = fingerprint }

// HostKey is the fingerprint of the host key that was accepted, "SHA256:…"; empty before.
// Of a certificate it is that of the key which is certified.
func (c *Client) HostKey() string { return c.hostKey }

func (c *Client) checkRequired(key ssh.PublicKey) error {
	if certificate, ok := key.(*ssh.Certificate); ok {
		key = certificate.Key
	}
	presented := ssh.FingerprintSHA256(key)
	if c.required != "" && c.required != presented {
		return &HostKeyError{Host: c.pins.host, Type: key.Type(), Fingerprint: presented, Known: []string{c.required}, Problem: ProblemOther, Scan: c.pins.scan}
	}
	c.hostKey = presented
	return nil
}

// Known are those of the keys, which the machine presents, that are pinned for it. The
// error is a *HostKeyError where other keys are, or where one of them is revoked; where
// nothing is pinned, there is neither a key nor an error.
func (t *Target) Known(keys []ssh.PublicKey) ([]ssh.PublicKey, error) {
	p, err := t.pins(nil)
	if err != nil {
		return nil, err
	}
	var known []ssh.PublicKey
	var other error
	for _, key := range keys {
		err := p.check(p.host, nowhere, key)
		var refused *HostKeyError
		switch {
		case err == nil:
			known = append(known, key)
		case errors.As(err, &refused) && refused.Problem == "revoked":
			return nil, err
		case errors.As(err, &refused) && refused.Problem == "changed" && len(p.types) > 0: // an authority alone says nothing of keys without a certificate
			other = err
		}
	}
	if len(known) > 0 {
		return known, nil
	}
	return nil, other
}

// Close lets go of the agent.
func (c *Client) Close() { c.ring.close() }

// HostKeyTypes are what to pass to Target.Client for the next try after err: the
// types of keys that the server presented in vain, while a key of another type may
// be the pinned one. That is so with fingerprints, whose type is not known, and
// where one of several pinned keys was replaced. Nil where no other type is left.
func (c *Client) HostKeyTypes(err error, before []string) []string {
	var he *HostKeyError
	if !errors.As(err, &he) || he.Problem != "changed" && he.Problem != ProblemOther || !slices.Contains(c.pins.types, he.Type) || len(c.pins.types) == 1 {
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
	if !c.accepted && !ofNetwork(err) {
		return &UnexpectedError{Address: c.target.Address, Cause: err}
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

// ofNetwork says whether the connection ended, and no answer is the reason.
func ofNetwork(err error) bool {
	var network net.Error
	var errno syscall.Errno
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &network) || errors.As(err, &errno)
}
