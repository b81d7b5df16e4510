// Package configure writes the configuration of a remote host that becomes a node, with a credential
// that the cluster signs. The caller asks the user and prints the result.
package configure

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/bowline-k8s/bowline/config"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/nodecert"
	"github.com/bowline-k8s/bowline/sshlogin"
)

// Request is one run of "bowline configure".
type Request struct {
	Login, Socket, Name, Dir string
	// KeyFile is the private key to log in with. Empty: the user's own login, which Run finds.
	KeyFile string

	Options endpoint.Options
	target  *endpoint.Target
	// Trust asks the user whether the keys that the host presents at an address are its own. It
	// returns nil for a yes.
	Trust func(ctx context.Context, address string, keys []ssh.PublicKey) error
	Admin func() (*rest.Config, error) // credential that may approve certificates; used once
}

// Result is what a run wrote.
type Result struct {
	File  string    // the configuration
	Login string    // what the configuration logs in with
	Until time.Time // end of the node's credential
}

func (n *Request) endpoint() string { return "ssh://" + n.Login + n.Socket }

func (n *Request) Validate() (err error) {
	if faults := validation.IsDNS1123Subdomain(n.Name); len(faults) > 0 {
		return fmt.Errorf("--node-name %q: %s", n.Name, faults[0])
	}
	if n.KeyFile != "" {
		if n.KeyFile, err = filepath.Abs(n.KeyFile); err != nil {
			return err
		}
		if _, err := os.Stat(n.KeyFile); err != nil {
			return fmt.Errorf("--identity-file: %w", err)
		}
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
		return hint.Add(fmt.Errorf("--out %s: the directory already has a configuration", n.Dir), "choose another directory")
	}
	return nil
}

// Run writes the configuration and the credential.
func (n *Request) Run(ctx context.Context) (*Result, error) {
	keys, err := n.hostKeys(ctx)
	if err != nil {
		return nil, err
	}
	if n.KeyFile == "" {
		if err := n.ownLogin(ctx, keys); err != nil {
			return nil, err
		}
	}
	admin, err := n.Admin()
	if err != nil {
		return nil, err
	}
	issued, err := nodecert.Issue(ctx, admin, n.Name)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(n.Dir, 0o700); err != nil {
		return nil, err
	}
	files := map[string][]byte{n.Name + ".kubeconfig": issued.Kubeconfig}
	if len(issued.ClientCA) > 0 {
		files[clientCAName] = issued.ClientCA
	}
	text, err := n.yaml(keys, issued)
	if err != nil {
		return nil, err
	}
	for name, data := range files {
		if err := os.WriteFile(filepath.Join(n.Dir, name), data, 0o600); err != nil {
			return nil, err
		}
	}
	file := filepath.Join(n.Dir, "config.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return nil, err
	}
	if _, err := config.Load(file); err != nil {
		return nil, err
	}
	login := "the key " + n.KeyFile
	if n.KeyFile == "" {
		login = "the ssh-agent at " + n.Options.Credentials.AgentSocket + ", which must keep running"
	}
	return &Result{file, login, issued.Until}, nil
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
		return nil, hint.Add(fmt.Errorf("%s: none of its host keys is in %s", n.target.Address, strings.Join(n.Options.KnownHosts, ", ")), "leave --known-hosts out to be asked")
	default:
		if err := n.Trust(ctx, n.target.Address, keys); err != nil {
			return nil, err
		}
	}
	var lines []string
	for _, key := range keys {
		lines = append(lines, strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key))))
	}
	return lines, nil
}

// ownLogin finds what the user's own ssh would log in with, and the host accepts: a key in ~/.ssh, or
// else the ssh-agent. The key comes first, because "bowline run" may outlive the agent.
func (n *Request) ownLogin(ctx context.Context, hostKeys []string) error {
	own := sshlogin.Own(ctx)
	var tries []endpoint.Credentials
	for _, file := range own.Keys {
		tries = append(tries, endpoint.Credentials{KeyFile: file})
	}
	if own.Agent != "" {
		tries = append(tries, endpoint.Credentials{AgentSocket: own.Agent})
	}
	for _, credentials := range tries {
		err := n.accepted(ctx, credentials, hostKeys)
		var refused *endpoint.AuthError
		switch {
		case err == nil:
			n.KeyFile, n.Options.Credentials = credentials.KeyFile, credentials
			return nil
		case !errors.As(err, &refused):
			return err
		}
	}
	if len(tries) == 0 {
		return hint.Add(errors.New("no key to log in with: there is none in ~/.ssh without a passphrase, and no ssh-agent has one"), "name one with --identity-file")
	}
	return hint.Add(fmt.Errorf("%s refuses your keys in ~/.ssh and your ssh-agent", n.target), "add one of them to its authorized_keys, or name another with --identity-file")
}

// accepted logs in once.
func (n *Request) accepted(ctx context.Context, credentials endpoint.Credentials, hostKeys []string) error {
	target, err := endpoint.Resolve(n.endpoint(), endpoint.Options{Credentials: credentials, HostKeys: hostKeys})
	if err != nil {
		return err
	}
	client, err := target.Login(ctx, (&net.Dialer{Timeout: dialTime}).DialContext)
	if err != nil {
		return err
	}
	return client.Close()
}

// dialTime bounds the TCP connection of a login.
const dialTime = 10 * time.Second

// yaml returns the configuration file. It contains only what is set, in reading order.
func (n *Request) yaml(keys []string, issued *nodecert.Issued) ([]byte, error) {
	type object = map[string]any
	login := object{"hostKeys": keys}
	if n.KeyFile != "" {
		login["identityFile"] = n.KeyFile
	} else {
		login["agentSocket"] = n.Options.Credentials.AgentSocket
	}
	machine := object{"nodeName": n.Name, "kubeconfig": n.Name + ".kubeconfig", "endpoint": n.endpoint(), "ssh": login}
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
