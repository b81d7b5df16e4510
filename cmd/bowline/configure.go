package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/configure"
)

func configureCommand() *cobra.Command {
	n := &configure.Request{}
	var kubeconfig string
	c := &cobra.Command{
		Use:   "configure",
		Short: "Write the configuration of a remote machine, with a credential for its node",
		Long: `Write what "bowline run" needs to run a remote host as a node to a new directory:
config.yaml with the pinned host keys, a kubeconfig with a certificate for
system:node:NAME that the cluster signs (its private key is created here), and the CA
of the client certificate with which the API server connects to the node.

The command accepts the host keys if --known-hosts, --host-key or your own known_hosts
has one of them, and asks you otherwise. --kubeconfig needs the right to approve
certificate signing requests; it is used once and not stored.`,
		Example: `  bowline configure --ssh root@10.0.0.7 --identity-file ~/.ssh/id_ed25519 \
    --known-hosts ~/.ssh/known_hosts --node-name box-1 --kubeconfig ~/.kube/config --out box-1
  bowline run --config box-1/config.yaml`,
		Args: arguments(),
		RunE: func(c *cobra.Command, _ []string) error {
			out := c.OutOrStdout()
			who := newPerson(c.InOrStdin(), out, false)
			who.answers(c.InOrStdin()) // answers may be piped
			n.Trust = who.trusts
			n.Admin = (&access{kubeconfig: kubeconfig}).rest
			if err := n.Validate(); err != nil {
				return err
			}
			done, err := n.Run(c.Context())
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "Wrote %s. Bowline will log in with %s. The node's credential is valid until %s.\nNext: bowline run --config %s\n", done.File, done.Login, done.Until.Format("2006-01-02"), done.File)
			return err
		},
	}
	f := c.Flags()
	f.StringVar(&n.Login, "ssh", "", "the machine, user@host[:port]")
	f.StringVar(&n.Socket, "socket", "/run/containerd/containerd.sock", "the socket of the host's CRI runtime; /run/crio/crio.sock with CRI-O")
	f.StringVar(&n.KeyFile, "identity-file", "", "the private key to log in with (default: the first in ~/.ssh that the host accepts, else your ssh-agent)")
	f.StringArrayVar(&n.Options.KnownHosts, "known-hosts", nil, "a known_hosts file that has the host's key; may be repeated")
	f.StringArrayVar(&n.Options.HostKeys, "host-key", nil, "a host key of the host, \"ssh-ed25519 AAAA…\" or SHA256:…; may be repeated")
	f.StringVar(&n.Name, "node-name", "", "the name of the node")
	f.StringVar(&kubeconfig, "kubeconfig", "", "a kubeconfig with the right to approve certificates (default: as kubectl finds it)")
	f.StringVar(&n.Dir, "out", "", "the directory to make")
	for _, required := range []string{"ssh", "node-name", "out"} {
		_ = c.MarkFlagRequired(required) // the flags are defined above
	}
	return c
}

// trusts shows the host keys that a host presents, and asks whether they are its own.
func (p *person) trusts(ctx context.Context, address string, keys []ssh.PublicKey) error {
	fmt.Fprintf(p.out, "The authenticity of host '%s' can't be established. It presents\n", address)
	for _, key := range keys {
		fmt.Fprintf(p.out, "  %s %s\n", key.Type(), ssh.FingerprintSHA256(key))
	}
	fmt.Fprintln(p.out, "To see the host's own key, run on the host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
	return p.agrees(ctx, "Are you sure you want to continue connecting?", "nothing was created; set --known-hosts to a file that has the host's key")
}
