package main

import (
	"fmt"
	"net"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

func hostCommand() *cobra.Command {
	c := &cobra.Command{Use: "host", Short: "Add machines as nodes, check, prepare, list and remove them"}
	c.AddCommand(hostAddCommand(), hostListCommand(), hostRemoveCommand(), hostScanCommand(), hostCheckCommand(), hostPrepareCommand(), hostReleaseCommand(), hostClearCommand())
	return c
}

func hostScanCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "scan HOST[:PORT]",
		Short: "Print the SSH host keys of a machine, to compare and to pin",
		Long: `Print the SSH host keys that a machine presents, as lines for ssh.hostKeys, with
the fingerprint of each on standard error.

Someone between you and the machine can present other keys. Before you pin a key, compare
its fingerprint with the one on the machine's console
(ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub).`,
		Example: `  bowline host scan 10.0.0.7
  bowline host scan '[fd00::7]:2222'`,
		Args: arguments("HOST"),
		RunE: func(c *cobra.Command, args []string) error {
			address, err := sshAddress(args[0])
			if err != nil {
				return err
			}
			keys, err := endpoint.Scan(c.Context(), address, (&net.Dialer{}).DialContext)
			if err != nil {
				return err
			}
			for _, key := range keys {
				fmt.Fprintf(c.OutOrStdout(), "%s", ssh.MarshalAuthorizedKey(key))
				fmt.Fprintf(c.ErrOrStderr(), "# %s %s %s\n", address, key.Type(), ssh.FingerprintSHA256(key))
			}
			return nil
		},
	}
}

// sshAddress parses HOST or HOST:PORT into host:port; the default port is 22.
func sshAddress(text string) (string, error) {
	switch {
	case text == "", strings.ContainsAny(text, "/@ "):
		return "", fmt.Errorf("%q is not HOST or HOST:PORT", text)
	case strings.Count(text, ":") > 1 && !strings.HasPrefix(text, "["):
		return net.JoinHostPort(text, "22"), nil // a bare IPv6 address
	case strings.HasSuffix(text, "]"):
		return text + ":22", nil
	}
	if !strings.Contains(text, ":") {
		return net.JoinHostPort(text, "22"), nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil || host == "" || port == "" {
		return "", fmt.Errorf("%q is not HOST or HOST:PORT", text)
	}
	return net.JoinHostPort(host, port), nil
}
