// Package sshlogin finds what the user's own ssh would log in with.
package sshlogin

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"k8s.io/klog/v2"
)

// agentTime bounds the request for an agent's keys.
const agentTime = 3 * time.Second

// Login is what the user's own ssh would use. Every command that logs in to a host uses it unless
// flags say otherwise.
type Login struct {
	Agent      string   // socket of an agent that has keys, or empty
	Keys       []string // files of keys in ~/.ssh that need no passphrase
	KnownHosts []string // files; some may be missing
}

// Own finds the user's login. An agent that does not answer or has no keys does not hide the
// key files.
func Own(ctx context.Context) Login {
	l := Login{Agent: usableAgent(ctx)}
	home, err := os.UserHomeDir()
	if err != nil {
		return l
	}
	dir := filepath.Join(home, ".ssh")
	l.KnownHosts = []string{filepath.Join(dir, "known_hosts"), filepath.Join(dir, "known_hosts2"), "/etc/ssh/ssh_known_hosts"}
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		file := filepath.Join(dir, name)
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if _, err := ssh.ParsePrivateKey(data); err != nil {
			klog.FromContext(ctx).V(4).Info("Skipped a key", "file", file, "err", err) // mostly because it is encrypted; an agent may have it
			continue
		}
		l.Keys = append(l.Keys, file)
	}
	return l
}

// usableAgent returns the socket of the ssh-agent if the agent has a key, else "".
func usableAgent(ctx context.Context) string {
	socket := os.Getenv("SSH_AUTH_SOCK")
	if socket == "" {
		return ""
	}
	logger := klog.FromContext(ctx).V(4)
	conn, err := (&net.Dialer{Timeout: agentTime}).DialContext(ctx, "unix", socket)
	if err != nil {
		logger.Info("Skipped the ssh-agent", "socket", socket, "err", err)
		return ""
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(agentTime)); err != nil {
		return ""
	}
	keys, err := agent.NewClient(conn).List()
	if err != nil || len(keys) == 0 {
		logger.Info("Skipped the ssh-agent", "socket", socket, "keys", len(keys), "err", err)
		return ""
	}
	return socket
}
