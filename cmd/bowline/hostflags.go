package main

import (
	"fmt"
	"path"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
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
	f.StringVar(&h.ssh.Credentials.KeyFile, "identity-file", "", "a private key to log in with")
	f.StringVar(&h.certificate, "certificate-file", "", "an OpenSSH user certificate for it (default: KEY-cert.pub, if there)")
	f.StringVar(&h.ssh.Credentials.PassphraseFile, "passphrase-file", "", "the file of the passphrase of keys")
	f.StringVar(&h.ssh.Credentials.AgentSocket, "agent-socket", "", "the socket of an ssh-agent")
	f.StringArrayVar(&h.ssh.KnownHosts, "known-hosts", nil, "a known_hosts file; may be repeated")
	f.StringArrayVar(&h.ssh.HostKeys, "host-key", nil, "a pinned host key, \"ssh-ed25519 AAAA…\" or SHA256:…; may be repeated")
	f.StringVar(&h.ssh.ConfigFile, "ssh-config", "", "an ssh_config to honour")
	f.StringVar(&h.ssh.ProxyJump, "jump", "", "the way to the machine, [user@]host[:port] with commas between")
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
	cfg, err := checkConfig(raw, h.ssh, h.certificate, sshFlags(c))
	if err != nil {
		return nil, err
	}
	cfg.RootDir = h.rootDir
	return cfg, nil
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
