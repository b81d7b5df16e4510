package main

import (
	"context"
	"fmt"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/hostcheck"
	"github.com/bowline-k8s/bowline/sshlogin"
)

// hostFlags are the flags to reach a host that has no configuration yet.
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
	f.StringVar(&h.certificate, "certificate-file", "", "an OpenSSH user certificate for the key (default: KEY-cert.pub, if it exists)")
	f.StringVar(&h.ssh.Credentials.PassphraseFile, "passphrase-file", "", "a file with the passphrase of the keys")
	f.StringVar(&h.ssh.Credentials.AgentSocket, "agent-socket", "", "the socket of an ssh-agent (default: $SSH_AUTH_SOCK)")
	f.StringArrayVar(&h.ssh.KnownHosts, "known-hosts", nil, "a known_hosts file; may be repeated (default, without --host-key: those of ssh)")
	f.StringArrayVar(&h.ssh.HostKeys, "host-key", nil, "a pinned host key, \"ssh-ed25519 AAAA…\" or SHA256:…; may be repeated")
	f.StringVar(&h.ssh.ConfigFile, "ssh-config", "", "an ssh_config to use; it then sets the keys and known_hosts, as for ssh")
	f.StringVar(&h.ssh.ProxyJump, "jump", "", "the jump hosts on the way to the host, [user@]host[:port] separated by commas")
	f.StringArrayVar(&h.ssh.JumpHostKeys, "jump-host-key", nil, "a pinned host key of a jump; may be repeated")
	f.StringVar(&h.rootDir, "root-directory", "/var/lib/kubelet", "the node's rootDirectory on the host")
	f.StringVar(&h.logsDir, "pod-logs-directory", "/var/log/pods", "the node's podLogsDirectory on the host")
	f.StringVar(&h.cgroupRoot, "cgroup-root", "/", "the node's cgroupRoot on the host")
}

// check returns the check of the host at endpoint raw.
func (h *hostFlags) check(c *cobra.Command, raw string) (*hostcheck.Config, error) {
	for flag, p := range map[string]string{"root-directory": h.rootDir, "pod-logs-directory": h.logsDir, "cgroup-root": h.cgroupRoot} {
		if !path.IsAbs(p) || path.Clean(p) != p {
			return nil, fmt.Errorf("--%s %q is not a clean absolute path", flag, p)
		}
	}
	given := sshFlags(c)
	var own sshlogin.Login
	if strings.HasPrefix(raw, "ssh://") && h.ssh.ConfigFile == "" {
		own = sshlogin.Own(c.Context())
		h.ownDefaults(own)
	}
	cfg, err := checkConfig(raw, h.ssh, h.certificate, given)
	if err != nil {
		return nil, err
	}
	if cfg.Target != nil && h.ssh.Credentials.KeyFile == "" && !c.Flags().Changed("agent-socket") {
		cfg.Target.IdentityFiles = append(cfg.Target.IdentityFiles, own.Keys...)
		for i := range cfg.Target.Jumps {
			cfg.Target.Jumps[i].IdentityFiles = append(cfg.Target.Jumps[i].IdentityFiles, own.Keys...)
		}
	}
	cfg.RootDir = h.rootDir
	return cfg, nil
}

// ownDefaults fills what no flag sets from the user's own login. It sets the agent also with an
// identity file: the agent may have its passphrase.
func (h *hostFlags) ownDefaults(own sshlogin.Login) {
	if h.ssh.Credentials.AgentSocket == "" {
		h.ssh.Credentials.AgentSocket = own.Agent
	}
	if len(h.ssh.KnownHosts) == 0 && (len(h.ssh.HostKeys) == 0 || h.ssh.ProxyJump != "" && len(h.ssh.JumpHostKeys) == 0) {
		h.ssh.KnownHosts = own.KnownHosts
	}
}

// openChecked opens the host that was checked, with the same login.
func openChecked(ctx context.Context, checked *hostcheck.Config, cfg *config.Host) (*connect.Host, error) {
	if checked == nil || checked.Target == nil {
		return connect.Open(ctx, cfg, nil)
	}
	return connect.OpenSSH(ctx, cfg, nil, link.Config{Target: checked.Target})
}

// host returns the checked host in the form of a node's configuration.
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
