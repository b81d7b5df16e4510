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

// jumpName begins the name of a machine that is only passed through.
const jumpName = "jump "

// judgeHop are the lines of one machine on the way, up to its failure.
func judgeHop(name string, t *endpoint.Target, a hop) []Line {
	if !a.dialed {
		return []Line{{Failure, Reachability, name + " does not answer: " + undialed(a.err), dialMend(a.err)}}
	}
	var key *endpoint.HostKeyError
	var refused *endpoint.AuthError
	untrusted, denied := errors.As(a.err, &key), errors.As(a.err, &refused)
	if a.err != nil && a.key == nil && !untrusted && !denied {
		return []Line{{Failure, Reachability, fmt.Sprintf("%s accepts connections, and there is no SSH to be had: %v", name, a.err),
			"see that this is sshd's port (ssh://user@host:PORT/…), and what sshd logs:\njournalctl -u ssh"}}
	}
	lines := []Line{ok(Reachability, "%s answers in %s", name, a.took.Round(100*time.Microsecond))}
	if untrusted {
		return append(lines, judgeHostKey(name, key))
	}
	if a.key != nil {
		lines = append(lines, ok(HostKey, "%s %s is pinned", a.key.Type(), ssh.FingerprintSHA256(a.key)))
	}
	if a.err != nil {
		return append(lines, Line{Failure, Login, a.err.Error(), loginMend(t)})
	}
	return append(lines, ok(Login, "%s", t))
}

func judgeHostKey(name string, e *endpoint.HostKeyError) Line {
	presents := name + " presents " + e.Type + " " + e.Fingerprint
	if e.Type == "" {
		presents = name + " presents no key of a pinned type"
	}
	compare := "compare it with the machine's own, on its console:\nssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub\n"
	pin := "pin (--host-key, ssh.hostKeys) a line that this prints:\n"
	if strings.HasPrefix(name, jumpName) { // --host-key is of the machine alone
		pin = "write into a known_hosts file (--known-hosts, ssh.knownHosts) the jump's name and a line that this prints:\n"
	}
	switch e.Problem {
	case "unknown":
		return Line{Failure, HostKey, presents + ", and none is pinned", compare + "then " + pin + e.Scan}
	case "changed":
		return Line{Failure, HostKey, presents + ", and pinned is " + strings.Join(e.Known, ", ") + ": the key has changed, as the machine was installed anew or someone is in between",
			compare + "and only if it is the machine's, " + pin + e.Scan}
	}
	return Line{Failure, HostKey, e.Error(), e.Scan}
}

// undialed is what a dial says without the address, which the line begins with.
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

func dialMend(err error) string {
	var dns *net.DNSError
	var refused *ssh.OpenChannelError
	var timeout interface{ Timeout() bool }
	switch {
	case errors.As(err, &dns):
		return "write its address in the endpoint, or give its name to the resolver"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "start sshd there, or name its port (ssh://user@host:PORT/…):\nsystemctl enable --now ssh"
	case errors.As(err, &refused) && refused.Reason == ssh.Prohibited:
		return "let the jump forward, in its /etc/ssh/sshd_config:\nAllowTcpForwarding yes"
	case errors.As(err, &refused):
		return "see that the machine is up, and that its sshd can be reached from the jump"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "see that the machine is up, and that no firewall drops what goes to this port"
	}
	return "see that the machine is up and that there is a route to it"
}

func loginMend(t *endpoint.Target) string {
	key := t.KeyFile
	if key == "" && len(t.IdentityFiles) > 0 {
		key = t.IdentityFiles[0]
	}
	if key == "" {
		return "name a key (--identity-file) or an agent (--agent-socket)"
	}
	address, port, _ := net.SplitHostPort(t.Address)
	return fmt.Sprintf("have the machine take the key:\nssh-copy-id -i %s.pub -p %s %s@%s", key, port, t.User, address)
}
