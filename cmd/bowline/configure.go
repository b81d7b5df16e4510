package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

func configureCommand() *cobra.Command {
	n := &configuring{}
	c := &cobra.Command{
		Use:   "configure",
		Short: "Write the configuration of a remote machine, with a credential for its node",
		Long: `Make all that "bowline run" needs to make a node of a remote machine, in a new
directory: config.yaml with the machine's host keys pinned, the kubeconfig of the node
(a certificate of system:node:NAME that the cluster signs, its key made here), and the
authority by which the cluster calls the node.

The machine's keys are those that it presents, if --known-hosts, --host-key or your own
known_hosts have one of them; else you are asked. The kubeconfig given is of somebody
who may approve certificates; it is used for this and not kept.`,
		Example: `  bowline configure --ssh root@10.0.0.7 --identity-file ~/.ssh/id_ed25519 \
    --known-hosts ~/.ssh/known_hosts --node-name box-1 --kubeconfig ~/.kube/config --out box-1
  bowline run --config box-1/config.yaml`,
		Args: arguments(),
		RunE: func(c *cobra.Command, _ []string) error {
			n.out = c.OutOrStdout()
			n.who = newPerson(c.InOrStdin(), n.out, false)
			n.who.answers(c.InOrStdin()) // an answer may be piped
			if err := n.validate(); err != nil {
				return err
			}
			return n.run(c.Context())
		},
	}
	f := c.Flags()
	f.StringVar(&n.login, "ssh", "", "the machine, user@host[:port]")
	f.StringVar(&n.socket, "socket", "/run/containerd/containerd.sock", "the socket of its CRI runtime; /run/crio/crio.sock with CRI-O")
	f.StringVar(&n.keyFile, "identity-file", "", "the private key to log in with")
	f.StringArrayVar(&n.options.KnownHosts, "known-hosts", nil, "a known_hosts file that knows the machine; may be repeated")
	f.StringArrayVar(&n.options.HostKeys, "host-key", nil, "a host key of it, \"ssh-ed25519 AAAA…\" or SHA256:…; may be repeated")
	f.StringVar(&n.name, "node-name", "", "the name of the node")
	f.StringVar(&n.kubeconfig, "kubeconfig", "", "of somebody who may approve certificates (default: as kubectl finds it)")
	f.StringVar(&n.dir, "out", "", "the directory to make")
	for _, required := range []string{"ssh", "identity-file", "node-name", "out"} {
		_ = c.MarkFlagRequired(required) // they are defined above
	}
	return c
}

// configuring is one run of the command.
type configuring struct {
	login, socket, keyFile, name, kubeconfig, dir string

	options endpoint.Options
	target  *endpoint.Target
	who     *person
	out     io.Writer
}

func (n *configuring) endpoint() string { return "ssh://" + n.login + n.socket }

func (n *configuring) validate() (err error) {
	if faults := validation.IsDNS1123Subdomain(n.name); len(faults) > 0 {
		return fmt.Errorf("--node-name %q: %s", n.name, faults[0])
	}
	if n.keyFile, err = filepath.Abs(n.keyFile); err != nil {
		return err
	}
	if _, err := os.Stat(n.keyFile); err != nil {
		return fmt.Errorf("--identity-file: %w", err)
	}
	for _, key := range n.options.HostKeys {
		if err := endpoint.CheckHostKey(key); err != nil {
			return fmt.Errorf("--host-key: %w", err)
		}
	}
	n.options.Credentials.KeyFile = n.keyFile
	if n.target, err = endpoint.Resolve(n.endpoint(), n.options); err != nil {
		return fmt.Errorf("--ssh %q: %w", n.login, err)
	}
	if _, err := os.Stat(filepath.Join(n.dir, "config.yaml")); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--out %s: there is a configuration already; name another directory", n.dir)
	}
	return nil
}

func (n *configuring) run(ctx context.Context) error {
	keys, err := n.hostKeys(ctx)
	if err != nil {
		return err
	}
	admin, err := (&access{kubeconfig: n.kubeconfig}).rest()
	if err != nil {
		return err
	}
	issued, err := issueNode(ctx, admin, n.name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(n.dir, 0o700); err != nil {
		return err
	}
	files := map[string][]byte{n.name + ".kubeconfig": issued.kubeconfig}
	if len(issued.clientCA) > 0 {
		files[clientCAName] = issued.clientCA
	}
	text, err := n.yaml(keys, issued)
	if err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(n.dir, name), data, 0o600); err != nil {
			return err
		}
	}
	file := filepath.Join(n.dir, "config.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	if _, err := config.Load(file); err != nil {
		return err
	}
	fmt.Fprintf(n.out, "%s is written; the node's credential is good until %s.\nNow: bowline run --config %s\n", file, issued.until.Format("2006-01-02"), file)
	return nil
}

// clientCAName is the file of the authority of those who call the node.
const clientCAName = "client-ca.crt"

// hostKeys are the keys that the machine presents and that are known for its own: by the
// flags, else by the person's known_hosts, else by the person.
func (n *configuring) hostKeys(ctx context.Context) ([]string, error) {
	keys, err := endpoint.Scan(ctx, n.target.Address, (&net.Dialer{}).DialContext)
	if err != nil {
		return nil, err
	}
	named := len(n.options.KnownHosts)+len(n.options.HostKeys) > 0
	by := *n.target
	if !named {
		by.KnownHosts = ownLogin(ctx).knownHosts
	}
	known, err := by.Known(keys)
	switch {
	case err != nil:
		return nil, err
	case len(known) > 0:
		keys = known
	case named:
		return nil, fmt.Errorf("%s: none of its host keys is in %s; leave --known-hosts out to be asked", n.target.Address, strings.Join(n.options.KnownHosts, ", "))
	default:
		if err := n.ask(ctx, keys); err != nil {
			return nil, err
		}
	}
	var lines []string
	for _, key := range keys {
		lines = append(lines, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))))
	}
	return lines, nil
}

func (n *configuring) ask(ctx context.Context, keys []ssh.PublicKey) error {
	fmt.Fprintf(n.out, "The authenticity of host '%s' can't be established. It presents\n", n.target.Address)
	for _, key := range keys {
		fmt.Fprintf(n.out, "  %s %s\n", key.Type(), ssh.FingerprintSHA256(key))
	}
	fmt.Fprintln(n.out, "The machine's own are shown there by: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
	return n.who.agrees(ctx, "Are you sure you want to continue connecting?", "nothing was made; name a known_hosts file that knows the machine, by --known-hosts")
}

// yaml is the configuration. Only what is set is written, in the order of reading.
func (n *configuring) yaml(keys []string, issued *issuedNode) ([]byte, error) {
	type object = map[string]any
	machine := object{
		"nodeName": n.name, "kubeconfig": n.name + ".kubeconfig", "endpoint": n.endpoint(),
		"ssh": object{"identityFile": n.keyFile, "hostKeys": keys},
	}
	if len(issued.clientCA) > 0 {
		machine["authentication"] = object{"x509": object{"clientCAFile": clientCAName}}
	}
	head := object{"apiVersion": config.APIVersion, "kind": config.Kind}
	if issued.dns != "" {
		head["clusterDNS"] = []string{issued.dns}
	}
	var out []byte
	for _, part := range []object{head, {"hosts": []object{machine}}} {
		data, err := yaml.Marshal(part)
		if err != nil {
			return nil, err
		}
		out = append(out, data...)
	}
	return out, nil
}
