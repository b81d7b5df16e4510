package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"
	"k8s.io/klog/v2"

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
		Short: "Make a node of a machine: its host key, a key to log in with, the Host object",
		Long: `Make a node of a machine that you may log in to by ssh, in a cluster where Bowline
runs. It shows the machine's host key and asks for it; makes a key for this machine alone,
keeps it in a Secret of Bowline's namespace, and puts its line into the machine's
authorized_keys by your own login (--identity-file, or your ssh-agent), or shows the line;
looks at the machine as "host check" does; gives the service account of Bowline's chart
the rights to be this node and to read this Secret, and no other; makes the Host; and waits
for its node to be Ready, telling each step.

Where a step fails, mend what it says and run the command again: it goes on from there.`,
		Example: `  bowline host add box-1 --ssh root@10.0.0.7
  bowline host add box-1 --ssh bowline@10.0.0.7:2222 --label example.com/gpu=true \
    --taint example.com/lent=true:NoSchedule --from 192.0.2.10`,
		Args: cobra.ExactArgs(1),
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
			e.Machine = func(raw string) enroll.Machine {
				m := ownAccess(raw, identity)
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
	f.StringVar(&r.Socket, "socket", "/run/containerd/containerd.sock", "its runtime's socket")
	f.StringVar(&r.NodeName, "node-name", "", "the name of the node (default: NAME)")
	f.StringArrayVar(&labels, "label", nil, "a label of the node, KEY=VALUE; may be repeated")
	f.StringArrayVar(&taints, "taint", nil, "a taint of the node, KEY=VALUE:EFFECT; may be repeated")
	exposureFlag(c, &exposure)
	f.StringVarP(&identity, "identity-file", "i", "", "your own private key, to put the line into authorized_keys with (default: your ssh-agent, else your keys in ~/.ssh)")
	f.StringVar(&key, "key", "", "a private key that Bowline shall log in with (default: one is made)")
	f.StringVar(&r.From, "from", "", "the address that Bowline comes from, to which the key is restricted")
	f.StringArrayVar(&r.HostKeys, "host-key", nil, "a host key of the machine, \"ssh-ed25519 AAAA…\" or SHA256:…, instead of the question; may be repeated")
	f.StringVar(&r.ServiceAccount, "service-account", "", "Bowline's service account, NAMESPACE/NAME, which is given the rights that the node takes (default: the chart's, in --namespace)")
	f.BoolVar(&r.ByHand, "by-hand", false, "show the line for authorized_keys, and do not put it there")
	f.BoolVarP(&yes, "yes", "y", false, "answer every question with yes: takes whatever host key is presented, where none is given")
	f.DurationVar(&timeout, "timeout", 5*time.Minute, "how long all of it may take")
	_ = c.MarkFlagRequired("ssh") // it is defined above
	return c
}

// enroller is what the commands on Host objects have in common.
func (a *access) enroller(c *cobra.Command, yes bool) (*enroll.Enroller, error) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // what is to be said is said to a person
	objects, client, err := a.clients()
	if err != nil {
		return nil, err
	}
	who := newPerson(c.InOrStdin(), c.OutOrStdout(), yes)
	return &enroll.Enroller{Hosts: objects, Client: client, Asker: who, Reporter: who, Command: c.Root().DisplayName(), Poll: poll}, nil
}

// ownAccess is a machine by a person's own login: the key that was named, an agent, or
// the usual keys that need no passphrase.
func ownAccess(raw, identity string) *enroll.SSH {
	m := &enroll.SSH{Endpoint: raw}
	if identity != "" {
		m.Access = endpoint.Credentials{KeyFile: identity, AgentSocket: os.Getenv("SSH_AUTH_SOCK")}
		return m
	}
	if m.Access.AgentSocket = os.Getenv("SSH_AUTH_SOCK"); m.Access.AgentSocket != "" {
		return m
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return m
	}
	for _, name := range []string{"id_ed25519", "id_ecdsa", "id_rsa"} {
		file := filepath.Join(home, ".ssh", name)
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		if _, err := ssh.ParsePrivateKey(data); err != nil {
			continue // most of all: its passphrase is an agent's to know
		}
		m.Keys = append(m.Keys, file)
	}
	return m
}
