package enroll

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

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// KubeletPort is the port of a machine that listens for its node, as of a kubelet.
const KubeletPort = 10250

// comment ends the key's line in authorized_keys, by which it is found again.
func comment(name string) string { return "bowline:" + name }

// newKey makes the key of a host, in OpenSSH's format.
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

// publicKey is the public half of a private key that is not encrypted.
func publicKey(private []byte) (ssh.PublicKey, error) {
	signer, err := ssh.ParsePrivateKey(private)
	var encrypted *ssh.PassphraseMissingError
	switch {
	case errors.As(err, &encrypted):
		return nil, errors.New("the key has a passphrase; Bowline logs in while nobody is there to type it: leave --key out, and one is made for this machine alone")
	case err != nil:
		return nil, fmt.Errorf("it is no private key: %w", err)
	}
	return signer.PublicKey(), nil
}

// authorizedKey is the line of authorized_keys that lets a key do what Bowline needs
// and no more (docs/trust.md): restrict takes all away, port-forwarding gives sockets
// and addresses back. permitopen would let no probe through, and holds no socket back; a
// forced command would let no shell through. more is of jumpOptions or listenOptions.
func authorizedKey(key ssh.PublicKey, name, from, more string) string {
	options := "restrict,port-forwarding" + more
	if from != "" {
		options += `,from="` + from + `"`
	}
	return options + " " + strings.TrimSpace(string(bytes.TrimSpace(ssh.MarshalAuthorizedKey(key)))) + " " + comment(name)
}

// listenOptions hold a key to the one port of the machine on which it may listen; 0:
// sshd's configuration says where.
func listenOptions(port int) string {
	if port == 0 {
		return ""
	}
	return `,permitlisten="` + strconv.Itoa(port) + `"`
}

// jumpOptions hold a key to what it needs at a jump: the way to the next machine.
func jumpOptions(next endpoint.URL) string {
	return `,permitopen="` + net.JoinHostPort(next.Host, strconv.Itoa(cmp.Or(next.Port, 22))) + `",command="false"`
}
