package hostcheck

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// jumpName is the prefix of a jump host's name.
const jumpName = "jump "

// checkHop returns the lines of one hop, up to its first failure.
func checkHop(name string, t *endpoint.Target, a hop) []Line {
	if !a.dialed {
		return []Line{{Failure, Reachability, name + " does not answer: " + undialed(a.err), dialFix(a.err)}}
	}
	var key *endpoint.HostKeyError
	var refused *endpoint.AuthError
	untrusted, denied := errors.As(a.err, &key), errors.As(a.err, &refused)
	if a.err != nil && a.key == nil && !untrusted && !denied {
		return []Line{{Failure, Reachability, fmt.Sprintf("%s accepts connections but does not speak SSH: %v", name, a.err),
			"check that this is the port of sshd (ssh://user@host:PORT/…), and read its log:\njournalctl -u ssh"}}
	}
	lines := []Line{ok(Reachability, "%s answers in %s", name, a.took.Round(100*time.Microsecond))}
	if untrusted {
		return append(lines, checkHostKey(name, key))
	}
	if a.key != nil {
		lines = append(lines, ok(HostKey, "%s %s is pinned", a.key.Type(), ssh.FingerprintSHA256(a.key)))
	}
	if a.err != nil {
		return append(lines, Line{Failure, Login, a.err.Error(), loginFix(t)})
	}
	return append(lines, ok(Login, "%s", t))
}

func checkHostKey(name string, e *endpoint.HostKeyError) Line {
	presents := name + " presents " + e.Type + " " + e.Fingerprint
	if e.Type == "" {
		presents = name + " presents no key of a pinned type"
	}
	compare := "compare it with the host's own key, on its console:\nssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
	pin := "pin one line of this output (--host-key, ssh.hostKeys):\n"
	if strings.HasPrefix(name, jumpName) { // --host-key applies to the machine only
		pin = "write the jump's name and one line of this output to a known_hosts file (--known-hosts, ssh.knownHosts):\n"
	}
	switch e.Problem {
	case "unknown":
		return Line{Failure, HostKey, presents + ", and none is pinned", compare + "then " + pin + e.Scan}
	case "changed":
		return Line{Failure, HostKey, presents + ", and pinned is " + strings.Join(e.Known, ", ") + ": the key has changed: the host was reinstalled, or someone intercepts the connection",
			compare + "and only if it is the host's key, " + pin + e.Scan}
	}
	return Line{Failure, HostKey, e.Error(), e.Hint()}
}

// undialed is a dial error without the address, which the line already has.
func undialed(err error) string {
	var op *net.OpError
	var call *os.SyscallError
	var refused *ssh.OpenChannelError
	switch {
	case errors.As(err, &refused) && refused.Message != "":
		return "its jump says: " + refused.Message
	case errors.As(err, &call):
		return call.Err.Error()
	case errors.As(err, &op) && op.Err != nil:
		return op.Err.Error()
	}
	return err.Error()
}

func dialFix(err error) string {
	var dns *net.DNSError
	var refused *ssh.OpenChannelError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &dns):
		return "use its address in the endpoint, or add its name to DNS"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "start sshd on the host, or set its port (ssh://user@host:PORT/…):\nsystemctl enable --now ssh"
	case errors.As(err, &refused) && refused.Reason == ssh.Prohibited:
		return "allow forwarding in /etc/ssh/sshd_config of the jump:\nAllowTcpForwarding yes"
	case errors.As(err, &refused):
		return "check that the host is up, and that the jump can reach its sshd"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "check that the host is up, and that no firewall drops packets to this port"
	}
	return "check that the host is up, and that there is a route to it"
}

func loginFix(t *endpoint.Target) string {
	key := t.KeyFile
	if key == "" && len(t.IdentityFiles) > 0 {
		key = t.IdentityFiles[0]
	}
	if key == "" {
		return "set a key (--identity-file) or an agent (--agent-socket)"
	}
	address, port, _ := net.SplitHostPort(t.Address)
	return fmt.Sprintf("add the key to the host:\nssh-copy-id -i %s.pub -p %s %s@%s", key, port, t.User, address)
}
