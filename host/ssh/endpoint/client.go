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

	"github.com/bowline-k8s/bowline/hint"
)

// Client is the configuration of one login.
type Client struct {
	// Config is for ssh.NewClientConn, with HostKeyName as its address.
	Config *ssh.ClientConfig

	target   *Target
	pins     *pins
	ring     *keyring
	rejected *HostKeyError
	accepted bool   // the host key was accepted
	hostKey  string // fingerprint of the accepted key
	required string // fingerprint of the only key to accept; empty: any pinned key
}

// AuthError reports that the host refused every key, or that there was no key to offer. A retry
// soon after does not help.
type AuthError struct{ msg, hint string }

func (e *AuthError) Error() string { return e.msg }

// Hint says what to do; it may be empty.
func (e *AuthError) Hint() string { return e.hint }

// NewAuthError is for a Source of Credentials that has no login. hint says what to do.
func NewAuthError(msg, hint string) *AuthError { return &AuthError{msg, hint} }

// UnexpectedError reports that the server at an address never got to present a host key. The
// text repeats nothing of the answer: the status of a Host shows this error, so anyone who may
// create Hosts could use it to find out what listens in Bowline's network. Cause has the
// details, for the log.
type UnexpectedError struct {
	Address string
	Cause   error
}

func (e *UnexpectedError) Error() string {
	return "what answers at " + e.Address + " is not an SSH server that shows a host key (the log says more with -v=2)"
}

// Client reads the keys and the pinned host keys of t as they are now. The caller must call
// Close after the login. It does not ask for the host key types in without; see HostKeyTypes.
// Its errors are *AuthError, except for an unreadable host key and for errors of Source.
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
		return nil, &AuthError{err.Error(), hint.Of(err)}
	}
	klog.FromContext(ctx).V(4).Info("Logging in by SSH", "target", t.String(), "keys", ring.names(), "skipped", ring.notes,
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

// Require accepts only the host key with this fingerprint, "SHA256:…", and only if it is pinned.
func (c *Client) Require(fingerprint string) { c.required = fingerprint }

// HostKey is the fingerprint of the accepted host key, "SHA256:…"; empty before. For a
// certificate it is that of the certified key.
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

// Known returns those of the given keys of the host that are pinned for it. The error is a
// *HostKeyError if only other keys are pinned, or if one of them is revoked. If nothing is
// pinned, there is neither a key nor an error.
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
		case errors.As(err, &refused) && refused.Problem == "changed" && len(p.types) > 0: // an authority alone says nothing about keys without a certificate
			other = err
		}
	}
	if len(known) > 0 {
		return known, nil
	}
	return nil, other
}

// Close closes the connection to the agent.
func (c *Client) Close() { c.ring.close() }

// HostKeyTypes returns what to pass to Target.Client for the next attempt after err: the key
// types that the server presented and that are not pinned, while the pinned key may be of
// another type. That happens with fingerprints, whose type is unknown, and if one of several
// pinned keys was replaced. Nil if no other type is left.
func (c *Client) HostKeyTypes(err error, before []string) []string {
	var he *HostKeyError
	if !errors.As(err, &he) || he.Problem != "changed" && he.Problem != ProblemOther || !slices.Contains(c.pins.types, he.Type) || len(c.pins.types) == 1 {
		return nil
	}
	return append(slices.Clone(before), he.Type)
}

// Explain converts the error of ssh.NewClientConn to a *HostKeyError, *AuthError or
// *UnexpectedError if it is one, and otherwise returns it unchanged.
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
	if answer, refused := loginRefused(err); c.accepted && refused {
		return &AuthError{fmt.Sprintf("%s refuses the login with %s (%s)", c.target, strings.Join(c.ring.names(), ", "), answer),
			"add one of them to its authorized_keys, or configure the key that is there"}
	}
	return err
}

// loginRefused reports whether an error that follows the host key refuses the login, and what it
// says. x/crypto/ssh has no exported types for these errors: "unable to authenticate" comes from
// fmt.Errorf, and the type of a disconnection is unexported. sshd disconnects with reason 2 after
// too many keys, and with 14 if no other method is left.
func loginRefused(err error) (answer string, refused bool) {
	text := err.Error()
	for _, sign := range []string{"unable to authenticate", "ssh: disconnect, reason 2:", "ssh: disconnect, reason 14:"} {
		refused = refused || strings.Contains(text, sign)
	}
	return strings.TrimPrefix(text, "ssh: handshake failed: "), refused
}

// ofNetwork reports whether err is the end of the connection, not an answer of the server.
func ofNetwork(err error) bool {
	var network net.Error
	var errno syscall.Errno
	return errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) || errors.As(err, &network) || errors.As(err, &errno)
}
