package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
	"k8s.io/klog/v2"
)

// agentTime bounds the question what an agent holds.
const agentTime = 3 * time.Second

// login is what a person's own ssh would use: every command that logs in to a machine
// takes it where no flag says otherwise.
type login struct {
	agent      string   // socket of an agent that has keys, or empty
	keys       []string // files of keys in ~/.ssh that need no passphrase
	knownHosts []string // files; some may be missing
}

// ownLogin looks for it. An agent that does not answer, or holds nothing, hides no key.
func ownLogin(ctx context.Context) login {
	l := login{agent: usableAgent(ctx)}
	home, err := os.UserHomeDir()
	if err != nil {
		return l
	}
	dir := filepath.Join(home, ".ssh")
	l.knownHosts = []string{filepath.Join(dir, "known_hosts"), filepath.Join(dir, "known_hosts2"), "/etc/ssh/ssh_known_hosts"}
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		file := filepath.Join(dir, name)
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if _, err := ssh.ParsePrivateKey(data); err != nil {
			klog.FromContext(ctx).V(4).Info("The key is not used", "file", file, "err", err) // most of all: its passphrase is an agent's to know
			continue
		}
		l.keys = append(l.keys, file)
	}
	return l
}

// usableAgent is the socket of the ssh-agent, if there is one with a key.
func usableAgent(ctx context.Context) string {
	socket := os.Getenv("SSH_AUTH_SOCK")
	if socket == "" {
		return ""
	}
	logger := klog.FromContext(ctx).V(4)
	conn, err := (&net.Dialer{Timeout: agentTime}).DialContext(ctx, "unix", socket)
	if err != nil {
		logger.Info("The ssh-agent is not used", "socket", socket, "err", err)
		return ""
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(agentTime)); err != nil {
		return ""
	}
	keys, err := agent.NewClient(conn).List()
	if err != nil || len(keys) == 0 {
		logger.Info("The ssh-agent is not used", "socket", socket, "keys", len(keys), "err", err)
		return ""
	}
	return socket
}

// quiet keeps libraries from logging where what there is to say is said to a person,
// unless the person asks for it with -v.
func quiet() {
	if !klog.V(1).Enabled() {
		klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	}
}
