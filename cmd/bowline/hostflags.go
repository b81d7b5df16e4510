package main

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/hostcheck"
)

// hostFlags say how to come to a machine that has no configuration yet.
type hostFlags struct {
	ssh         endpoint.Options
	certificate string
	rootDir     string
	logsDir     string
	cgroupRoot  string
}

func (h *hostFlags) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&h.ssh.Credentials.KeyFile, "identity-file", "i", "", "a private key to log in with (default: those of your ssh-agent and in ~/.ssh)")
	f.StringVar(&h.certificate, "certificate-file", "", "an OpenSSH user certificate for it (default: KEY-cert.pub, if there)")
	f.StringVar(&h.ssh.Credentials.PassphraseFile, "passphrase-file", "", "the file of the passphrase of keys")
	f.StringVar(&h.ssh.Credentials.AgentSocket, "agent-socket", "", "the socket of an ssh-agent (default: $SSH_AUTH_SOCK)")
	f.StringArrayVar(&h.ssh.KnownHosts, "known-hosts", nil, "a known_hosts file; may be repeated (default, without --host-key: those of ssh)")
	f.StringArrayVar(&h.ssh.HostKeys, "host-key", nil, "a pinned host key, \"ssh-ed25519 AAAA…\" or SHA256:…; may be repeated")
	f.StringVar(&h.ssh.ConfigFile, "ssh-config", "", "an ssh_config to honour; it names keys and known_hosts then, as for ssh")
	f.StringVar(&h.ssh.ProxyJump, "jump", "", "the way to the machine, [user@]host[:port] with commas between")
	f.StringArrayVar(&h.ssh.JumpHostKeys, "jump-host-key", nil, "a pinned host key of a jump; may be repeated")
	f.StringVar(&h.rootDir, "root-directory", "/var/lib/kubelet", "the node's rootDirectory on the machine")
	f.StringVar(&h.logsDir, "pod-logs-directory", "/var/log/pods", "the node's podLogsDirectory there")
	f.StringVar(&h.cgroupRoot, "cgroup-root", "/", "the node's cgroupRoot there")
}

// check is the machine as a check takes it.
func (h *hostFlags) check(c *cobra.Command, raw string) (*hostcheck.Config, error) {
	for flag, p := range map[string]string{"root-directory": h.rootDir, "pod-logs-directory": h.logsDir, "cgroup-root": h.cgroupRoot} {
		if !path.IsAbs(p) || path.Clean(p) != p {
			return nil, fmt.Errorf("--%s %q is not a clean absolute path", flag, p)
		}
	}
	given := sshFlags(c)
	var own login
	if strings.HasPrefix(raw, "ssh://") && h.ssh.ConfigFile == "" {
		own = ownLogin(c.Context())
		h.ownDefaults(own)
	}
	cfg, err := checkConfig(raw, h.ssh, h.certificate, given)
	if err != nil {
		return nil, err
	}
	if cfg.Target != nil && h.ssh.Credentials.KeyFile == "" && !c.Flags().Changed("agent-socket") {
		cfg.Target.IdentityFiles = append(cfg.Target.IdentityFiles, own.keys...)
		for i := range cfg.Target.Jumps {
			cfg.Target.Jumps[i].IdentityFiles = append(cfg.Target.Jumps[i].IdentityFiles, own.keys...)
		}
	}
	cfg.RootDir = h.rootDir
	return cfg, nil
}

// ownDefaults takes a person's own login for what no flag says. A key that is named may have
// its passphrase in the agent.
func (h *hostFlags) ownDefaults(own login) {
	if h.ssh.Credentials.AgentSocket == "" {
		h.ssh.Credentials.AgentSocket = own.agent
	}
	if len(h.ssh.KnownHosts) == 0 && (len(h.ssh.HostKeys) == 0 || h.ssh.ProxyJump != "" && len(h.ssh.JumpHostKeys) == 0) {
		h.ssh.KnownHosts = own.knownHosts
	}
}

// openChecked opens the machine that was looked at, by the same login.
func openChecked(ctx context.Context, checked *hostcheck.Config, cfg *config.Host) (*machine, error) {
	if checked == nil || checked.Target == nil {
		return openMachine(ctx, cfg, nil)
	}
	return openFar(ctx, cfg, nil, link.Config{Target: checked.Target})
}

// host is the same machine as a node takes it.
func (h *hostFlags) host(checked *hostcheck.Config) *config.Host {
	name := "this machine"
	if checked.Target != nil {
		name = checked.Target.Name
	}
	return &config.Host{
		Name: name, Endpoint: checked.Endpoint, RootDirectory: h.rootDir,
		SSH: config.SSH{
			IdentityFile: h.ssh.Credentials.KeyFile, CertificateFile: h.certificate,
			PassphraseFile: h.ssh.Credentials.PassphraseFile, AgentSocket: h.ssh.Credentials.AgentSocket,
			HostKeys: h.ssh.HostKeys, KnownHosts: h.ssh.KnownHosts, ConfigFile: h.ssh.ConfigFile, ProxyJump: h.ssh.ProxyJump,
		},
		NodeSettings: config.NodeSettings{PodLogsDirectory: h.logsDir, CgroupRoot: h.cgroupRoot},
	}
}
