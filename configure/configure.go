// Package configure writes the configuration of a remote host that becomes a node, with a credential
// that the cluster signs. The caller talks to the user.
package configure

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

	"golang.org/x/crypto/ssh"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/nodecert"
	"github.com/bowline-k8s/bowline/sshlogin"
)

// Request is one run of "bowline configure".
type Request struct {
	Login, Socket, KeyFile, Name, Dir string

	Options endpoint.Options
	target  *endpoint.Target
	// Agree returns nil for a yes, and otherwise the error instead.
	Agree func(ctx context.Context, question, instead string) error
	Admin func() (*rest.Config, error) // credential that may approve certificates; used once
	Out   io.Writer
}

func (n *Request) endpoint() string { return "ssh://" + n.Login + n.Socket }

func (n *Request) Validate() (err error) {
	if faults := validation.IsDNS1123Subdomain(n.Name); len(faults) > 0 {
		return fmt.Errorf("--node-name %q: %s", n.Name, faults[0])
	}
	if n.KeyFile, err = filepath.Abs(n.KeyFile); err != nil {
		return err
	}
	if _, err := os.Stat(n.KeyFile); err != nil {
		return fmt.Errorf("--identity-file: %w", err)
	}
	for _, key := range n.Options.HostKeys {
		if err := endpoint.CheckHostKey(key); err != nil {
			return fmt.Errorf("--host-key: %w", err)
		}
	}
	n.Options.Credentials.KeyFile = n.KeyFile
	if n.target, err = endpoint.Resolve(n.endpoint(), n.Options); err != nil {
		return fmt.Errorf("--ssh %q: %w", n.Login, err)
	}
	if _, err := os.Stat(filepath.Join(n.Dir, "config.yaml")); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("--out %s: the directory already has a configuration; choose another directory", n.Dir)
	}
	return nil
}

func (n *Request) Run(ctx context.Context) error {
	keys, err := n.hostKeys(ctx)
	if err != nil {
		return err
	}
	admin, err := n.Admin()
	if err != nil {
		return err
	}
	issued, err := nodecert.Issue(ctx, admin, n.Name)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(n.Dir, 0o700); err != nil {
		return err
	}
	files := map[string][]byte{n.Name + ".kubeconfig": issued.Kubeconfig}
	if len(issued.ClientCA) > 0 {
		files[clientCAName] = issued.ClientCA
	}
	text, err := n.yaml(keys, issued)
	if err != nil {
		return err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(n.Dir, name), data, 0o600); err != nil {
			return err
		}
	}
	file := filepath.Join(n.Dir, "config.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	if _, err := config.Load(file); err != nil {
		return err
	}
	fmt.Fprintf(n.Out, "Wrote %s. The node's credential is valid until %s.\nNext: bowline run --config %s\n", file, issued.Until.Format("2006-01-02"), file)
	return nil
}

// clientCAName is the file with the CA of the clients that call the node's API.
const clientCAName = "client-ca.crt"

// hostKeys returns the keys that the host presents and that are trusted: by the flags, else by the
// user's known_hosts, else by the user's confirmation.
func (n *Request) hostKeys(ctx context.Context) ([]string, error) {
	keys, err := endpoint.Scan(ctx, n.target.Address, (&net.Dialer{}).DialContext)
	if err != nil {
		return nil, err
	}
	named := len(n.Options.KnownHosts)+len(n.Options.HostKeys) > 0
	by := *n.target
	if !named {
		by.KnownHosts = sshlogin.Own(ctx).KnownHosts
	}
	known, err := by.Known(keys)
	switch {
	case err != nil:
		return nil, err
	case len(known) > 0:
		keys = known
	case named:
		return nil, fmt.Errorf("%s: none of its host keys is in %s; leave --known-hosts out to be asked", n.target.Address, strings.Join(n.Options.KnownHosts, ", "))
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

func (n *Request) ask(ctx context.Context, keys []ssh.PublicKey) error {
	fmt.Fprintf(n.Out, "The authenticity of host '%s' can't be established. It presents\n", n.target.Address)
	for _, key := range keys {
		fmt.Fprintf(n.Out, "  %s %s\n", key.Type(), ssh.FingerprintSHA256(key))
	}
	fmt.Fprintln(n.Out, "To see the host's own key, run on the host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
	return n.Agree(ctx, "Are you sure you want to continue connecting?", "nothing was created; set --known-hosts to a file that has the host's key")
}

// yaml returns the configuration file. It contains only what is set, in reading order.
func (n *Request) yaml(keys []string, issued *nodecert.Issued) ([]byte, error) {
	type object = map[string]any
	machine := object{
		"nodeName": n.Name, "kubeconfig": n.Name + ".kubeconfig", "endpoint": n.endpoint(),
		"ssh": object{"identityFile": n.KeyFile, "hostKeys": keys},
	}
	if len(issued.ClientCA) > 0 {
		machine["authentication"] = object{"x509": object{"clientCAFile": clientCAName}}
	}
	head := object{"apiVersion": config.APIVersion, "kind": config.Kind}
	if issued.DNS != "" {
		head["clusterDNS"] = []string{issued.DNS}
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
