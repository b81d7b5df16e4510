package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/api/v1alpha1"
	"github.com/bowline-k8s/bowline/enroll"
	"github.com/bowline-k8s/bowline/host/ssh/endpoint"
)

// poll is the time between two looks of a person's command at what it waits for.
const poll = time.Second

func hostAddCommand() *cobra.Command {
	var (
		way            access
		r              enroll.Request
		labels, taints []string
		identity, key  string
		exposure       string
		yes            bool
		timeout        time.Duration
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

Where a step fails, fix what it says and run the command again: it goes on from there.
With -v=4 each login is logged, with the keys that were offered.`,
		Example: `  bowline host add box-1 --ssh root@10.0.0.7
  bowline host add box-1 --ssh bowline@10.0.0.7:2222 --label example.com/gpu=true \
    --taint example.com/lent=true:NoSchedule --from 192.0.2.10`,
		Args: arguments("NAME"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			r.Name, r.Exposure = args[0], v1alpha1.KubeletExposure(exposure)
			if r.Labels, err = enroll.ParseLabels(labels); err != nil {
				return err
			}
			for _, t := range taints {
				taint, err := enroll.ParseTaint(t)
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
			if err := r.Check(); err != nil { // before the cluster is asked
				return err
			}
			e, err := way.enroller(c, yes)
			if err != nil {
				return err
			}
			own := ownLogin(c.Context())
			e.Machine = func(raw string, jumps []endpoint.Jump) enroll.Machine {
				m := ownAccess(own, raw, identity, key)
				m.Jumps = jumps
				m.Expose = enroll.ExposedPort(r.Exposure)
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
	f.StringVar(&r.Socket, "socket", "/run/containerd/containerd.sock", "the socket of its CRI runtime; /run/crio/crio.sock with CRI-O")
	f.StringVar(&r.NodeName, "node-name", "", "the name of the node (default: NAME)")
	f.StringArrayVar(&labels, "label", nil, "a label of the node, KEY=VALUE; may be repeated")
	f.StringArrayVar(&taints, "taint", nil, "a taint of the node, KEY=VALUE:EFFECT; may be repeated")
	exposureFlag(c, &exposure)
	f.StringVarP(&identity, "identity-file", "i", "", "your own private key, to put the line into authorized_keys with (default: those of your ssh-agent and in ~/.ssh)")
	f.StringVar(&key, "key", "", "a private key that Bowline shall log in with (default: one is made)")
	f.StringVar(&r.From, "from", "", "the address that Bowline comes from, to which the key is restricted")
	f.StringArrayVar(&r.HostKeys, "host-key", nil, "a host key of the machine, \"ssh-ed25519 AAAA…\" or SHA256:…, instead of the question; may be repeated")
	f.StringSliceVarP(&r.ProxyJump, "proxy-jump", "J", nil, "the way to the machine, user@host[:port] with commas between; the key is added to each jump's authorized_keys as well")
	f.StringArrayVar(&r.JumpHostKeys, "jump-host-key", nil, "a host key of a jump, as --host-key; may be repeated")
	f.StringVar(&r.ServiceAccount, "service-account", "", "Bowline's service account, NAMESPACE/NAME, which is given the rights that the node takes (default: the chart's, in --namespace)")
	f.BoolVar(&r.ByHand, "by-hand", false, "show the line for authorized_keys, and do not put it there")
	f.BoolVarP(&yes, "yes", "y", false, "answer every question with yes; accepts the host key that is presented, unless it differs from that of --host-key or your known_hosts")
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "how long all of it may take")
	_ = c.MarkFlagRequired("ssh") // it is defined above
	return c
}

// enroller is what the commands on Host objects have in common.
func (a *access) enroller(c *cobra.Command, yes bool) (*enroll.Enroller, error) {
	quiet()
	objects, client, err := a.clients()
	if err != nil {
		return nil, err
	}
	who := newPerson(c.InOrStdin(), c.OutOrStdout(), yes)
	return &enroll.Enroller{Hosts: objects, Client: client, Asker: who, Reporter: who, Command: c.Root().DisplayName(), Poll: poll}, nil
}

// ownAccess is a machine by a person's own login: the key that was named, with an agent
// that may know its passphrase; or an agent and the usual keys. given is the file of the
// key for Bowline, if there is one.
func ownAccess(own login, raw, identity, given string) *enroll.SSH {
	m := &enroll.SSH{Endpoint: raw, KnownHosts: own.knownHosts, KeyFile: given}
	m.Access.AgentSocket = own.agent
	if identity != "" {
		m.Access.KeyFile = identity
		return m
	}
	m.Keys = own.keys
	return m
}
