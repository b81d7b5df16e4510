package main

import (
	"context"
	"fmt"
	"path"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/host/ssh/link"
	"github.com/bowline-k8s/bowline/hostadmin"
	"github.com/bowline-k8s/bowline/hostcheck"
	"github.com/bowline-k8s/bowline/sshlogin"
)

// hostFlags are the flags to reach a host that has no configuration yet.
type hostFlags struct {
	hostadmin.Reach
	rootDir    string
	logsDir    string
	cgroupRoot string
	failSwapOn bool // by failSwapOnFlag, for the commands that check the host
}

// failSwapOnFlag is for the commands that check a host.
func failSwapOnFlag(c *cobra.Command, to *bool) {
	c.Flags().BoolVar(to, "fail-swap-on", true, "the node's failSwapOn: swap on the host is a failure")
}

func (h *hostFlags) register(c *cobra.Command) {
	f := c.Flags()
	f.StringVarP(&h.SSH.Credentials.KeyFile, "identity-file", "i", "", "a private key to log in with (default: those of your ssh-agent and in ~/.ssh)")
	f.StringVar(&h.Certificate, "certificate-file", "", "an OpenSSH user certificate for the key (default: KEY-cert.pub, if it exists)")
	f.StringVar(&h.SSH.Credentials.PassphraseFile, "passphrase-file", "", "a file with the passphrase of the keys")
	f.StringVar(&h.SSH.Credentials.AgentSocket, "agent-socket", "", "the socket of an ssh-agent (default: $SSH_AUTH_SOCK)")
	f.StringArrayVar(&h.SSH.KnownHosts, "known-hosts", nil, "a known_hosts file; may be repeated (default, without --host-key: those of ssh)")
	f.StringArrayVar(&h.SSH.HostKeys, "host-key", nil, "a pinned host key, \"ssh-ed25519 AAAA…\" or SHA256:…; may be repeated")
	f.StringVar(&h.SSH.ConfigFile, "ssh-config", "", "an ssh_config to use; it then sets the keys and known_hosts, as for ssh")
	f.StringVarP(&h.SSH.ProxyJump, "proxy-jump", "J", "", "the jump hosts on the way to the host, [user@]host[:port] separated by commas")
	f.StringArrayVar(&h.SSH.JumpHostKeys, "jump-host-key", nil, "a pinned host key of a jump; may be repeated")
	f.StringVar(&h.rootDir, "root-directory", "/var/lib/kubelet", "the node's rootDirectory on the host")
	f.StringVar(&h.logsDir, "pod-logs-directory", "/var/log/pods", "the node's podLogsDirectory on the host")
	f.StringVar(&h.cgroupRoot, "cgroup-root", "/", "the node's cgroupRoot on the host")
}

// check returns the check of the host at endpoint raw, if the flags are valid.
func (h *hostFlags) check(c *cobra.Command, raw string) (*hostcheck.Config, error) {
	for flag, p := range map[string]string{"root-directory": h.rootDir, "pod-logs-directory": h.logsDir, "cgroup-root": h.cgroupRoot} {
		if !path.IsAbs(p) || path.Clean(p) != p {
			return nil, fmt.Errorf("--%s %q is not a clean absolute path", flag, p)
		}
	}
	h.Given, h.Own = sshFlags(c), sshlogin.Own
	cfg, err := h.Check(c.Context(), raw, h.rootDir)
	if err != nil {
		return nil, err
	}
	cfg.AllowSwap = !h.failSwapOn
	return cfg, nil
}

// openHost opens the host that was checked, with the same login.
func openHost(ctx context.Context, checked *hostcheck.Config, cfg *config.Host) (*connect.Host, error) {
	if checked == nil || checked.Target == nil {
		return connect.Open(ctx, cfg, nil)
	}
	return connect.OpenSSH(ctx, cfg, nil, link.Config{Target: checked.Target})
}

// nodeConfig returns the checked host in the form of a node's configuration.
func (h *hostFlags) nodeConfig(checked *hostcheck.Config) *config.Host {
	name := "this machine"
	if checked.Target != nil {
		name = checked.Target.Name
	}
	return &config.Host{
		Name: name, Endpoint: checked.Endpoint, RootDirectory: h.rootDir,
		SSH: config.SSH{
			IdentityFile: h.SSH.Credentials.KeyFile, CertificateFile: h.Certificate,
			PassphraseFile: h.SSH.Credentials.PassphraseFile, AgentSocket: h.SSH.Credentials.AgentSocket,
			HostKeys: h.SSH.HostKeys, KnownHosts: h.SSH.KnownHosts, ConfigFile: h.SSH.ConfigFile, ProxyJump: h.SSH.ProxyJump,
		},
		NodeSettings: config.NodeSettings{PodLogsDirectory: h.logsDir, CgroupRoot: h.cgroupRoot},
	}
}
