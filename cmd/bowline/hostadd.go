package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
	"github.com/bowline-k8s/bowline/hostadmin"
	"github.com/bowline-k8s/bowline/sshlogin"
)

// poll is how often a command looks at what it waits for.
const poll = time.Second

func hostAddCommand() *cobra.Command {
	var (
		way            access
		r              hostadmin.Request
		labels, taints []string
		identity, key  string
		exposure       string
		yes, failSwap  bool
		grace, timeout time.Duration
	)
	c := &cobra.Command{
		Use:   "add NAME --ssh USER@HOST[:PORT]",
		Short: "Add a machine as a node: host key, login key, check, Host object",
		Long: `Add a machine that you can log in to by ssh as a node of a cluster in which Bowline
runs. The command
  - shows the machine's host key, and asks you to confirm it unless your known_hosts
    have it;
  - makes an SSH key for this machine alone, keeps it in a Secret of Bowline's namespace,
    and adds it to the machine's authorized_keys by your own login (--identity-file,
    your ssh-agent, your keys in ~/.ssh), or shows the line to add;
  - checks the machine as "host check" does;
  - gives the service account of Bowline's chart the rights to be this node and to read
    this Secret;
  - creates the Host and waits for its node to be Ready.

If a step fails, fix what it reports and run the command again: it continues from there.
With -v=4 each login is logged, with the keys that were offered.`,
		Example: `  bowline host add box-1 --ssh root@10.0.0.7
  bowline host add box-1 --ssh bowline@10.0.0.7:2222 --label example.com/rack=r1 \
    --taint example.com/lent=true:NoSchedule --from 192.0.2.10`,
		Args: arguments("NAME"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			r.Name, r.Exposure = args[0], v1alpha1.KubeletExposure(exposure)
			if c.Flags().Changed("link-grace") {
				r.LinkGrace = &metav1.Duration{Duration: grace}
			}
			if r.Labels, err = hostadmin.ParseLabels(labels); err != nil {
				return err
			}
			for _, t := range taints {
				taint, err := hostadmin.ParseTaint(t)
				if err != nil {
					return err
				}
				r.Taints = append(r.Taints, taint)
			}
			if key != "" {
				if r.Key, err = os.ReadFile(key); err != nil {
					return fmt.Errorf("--key: %w", err)
				}
			}
			if identity != "" {
				if _, err := os.Stat(identity); err != nil {
					return fmt.Errorf("--identity-file: %w", err)
				}
			}
			if err := r.Check(); err != nil { // before any request to the cluster
				return err
			}
			e, err := way.hostEditor(c, yes)
			if err != nil {
				return err
			}
			own := sshlogin.Own(c.Context())
			e.Machine = func(raw string, jumps []endpoint.Jump) hostadmin.Machine {
				m := ownAccess(own, raw, identity, key)
				m.Jumps = jumps
				m.Expose, m.AllowSwap = hostadmin.ExposedPort(r.Exposure), !failSwap
				return m
			}
			ctx, cancel := context.WithTimeout(c.Context(), timeout)
			defer cancel()
			return e.Add(ctx, r)
		},
	}
	way.register(c)
	namespaceFlag(c, &r.Namespace)
	f := c.Flags()
	f.StringVar(&r.Login, "ssh", "", "the machine, user@host[:port]")
	f.StringVar(&r.Socket, "socket", "/run/containerd/containerd.sock", "the socket of the host's CRI runtime; /run/crio/crio.sock with CRI-O")
	f.StringVar(&r.NodeName, "node-name", "", "the name of the node (default: NAME)")
	f.StringArrayVar(&labels, "label", nil, "a label of the node, KEY=VALUE; may be repeated")
	f.StringArrayVar(&taints, "taint", nil, "a taint of the node, KEY=VALUE:EFFECT; may be repeated")
	exposureFlag(c, &exposure)
	failSwapOnFlag(c, &failSwap)
	f.DurationVar(&grace, "link-grace", 0, "how long the link may be down before the node turns NotReady (default: 40s)")
	f.StringVarP(&identity, "identity-file", "i", "", "your own private key, to add the line to authorized_keys (default: your ssh-agent and ~/.ssh)")
	f.StringVar(&key, "key", "", "the private key with which Bowline logs in (default: a new one)")
	f.StringVar(&r.From, "from", "", "the address from which Bowline connects; the key is restricted to it")
	f.StringArrayVar(&r.HostKeys, "host-key", nil, "a host key to accept without a question, \"ssh-ed25519 AAAA…\" or SHA256:…; may be repeated")
	f.StringSliceVarP(&r.ProxyJump, "proxy-jump", "J", nil, "jump hosts, user@host[:port] separated by commas; the key is added to authorized_keys there too")
	f.StringArrayVar(&r.JumpHostKeys, "jump-host-key", nil, "a host key of a jump, as --host-key; may be repeated")
	f.StringVar(&r.ServiceAccount, "service-account", "", "NAMESPACE/NAME of Bowline's service account, which gets the rights (default: the chart's account)")
	f.BoolVar(&r.ByHand, "by-hand", false, "print the line for authorized_keys instead of adding it")
	f.BoolVarP(&yes, "yes", "y", false, "answer yes; a host key is refused only if it differs from --host-key or your known_hosts")
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "the time limit of the whole command")
	_ = c.MarkFlagRequired("ssh") // the flag is defined above
	return c
}

// hostEditor returns what the commands on Host objects share.
func (a *access) hostEditor(c *cobra.Command, yes bool) (*hostadmin.Editor, error) {
	quiet()
	objects, client, err := a.clients()
	if err != nil {
		return nil, err
	}
	who := newPerson(c.InOrStdin(), c.OutOrStdout(), yes)
	return &hostadmin.Editor{Hosts: objects, Client: client, Asker: who, Reporter: who, Command: c.Root().DisplayName(), Poll: poll}, nil
}

// ownAccess returns the host as reached with the user's own login: with the identity file, whose
// passphrase an agent may have; or without one, with the agent and the usual keys. given is the key
// file for Bowline, if any.
func ownAccess(own sshlogin.Login, raw, identity, given string) *hostadmin.SSH {
	m := &hostadmin.SSH{Endpoint: raw, KnownHosts: own.KnownHosts, KeyFile: given}
	m.Access.AgentSocket = own.Agent
	if identity != "" {
		m.Access.KeyFile = identity
		return m
	}
	m.Keys = own.Keys
	return m
}
