package hostadmin

import (
	"bytes"
	"cmp"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// KubeletPort is the port on which a machine listens for its node, as a kubelet does.
const KubeletPort = 10250

// comment is the comment of the key's line in authorized_keys, by which the line is found again.
func comment(name string) string { return "bowline:" + name }

// newKey creates the private key of a host, in OpenSSH format.
func newKey(name string) ([]byte, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment(name))
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	return pem.EncodeToMemory(block), nil
}

// publicKey returns the public half of an unencrypted private key.
func publicKey(private []byte) (ssh.PublicKey, error) {
	signer, err := ssh.ParsePrivateKey(private)
	var encrypted *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &encrypted):
		return nil, hint.Add(errors.New("the key has a passphrase, which Bowline cannot ask for"), "omit --key to create a key for this host")
	case err != nil:
		return nil, fmt.Errorf("not a private key: %w", err)
	}
	return signer.PublicKey(), nil
}

// authorizedKey is a line of authorized_keys that allows what Bowline needs and no more
// (docs/trust.md): restrict forbids everything, port-forwarding allows sockets and addresses again.
// permitopen would block probes and would not restrict sockets; a forced command would block the
// shell. more is from jumpOptions or listenOptions.
func authorizedKey(key ssh.PublicKey, name, from, more string) string {
	options := "restrict,port-forwarding" + more
	if from != "" {
		options += `,from="` + from + `"`
	}
	return options + " " + strings.TrimSpace(string(bytes.TrimSpace(ssh.MarshalAuthorizedKey(key)))) + " " + comment(name)
}

// listenOptions restricts a key to the one port of the machine on which it may listen; 0: sshd's
// configuration decides.
func listenOptions(port int) string {
	if port == 0 {
		return ""
	}
	return `,permitlisten="` + strconv.Itoa(port) + `"`
}

// jumpOptions restricts a key to what it needs at a jump: a connection to the next machine.
func jumpOptions(next endpoint.URL) string {
	return `,permitopen="` + net.JoinHostPort(next.Host, strconv.Itoa(cmp.Or(next.Port, 22))) + `",command="false"`
}
