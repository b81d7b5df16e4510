package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/bowline-k8s/bowline/handover"
	"github.com/bowline-k8s/bowline/hostcheck"
	"github.com/bowline-k8s/bowline/pod"
)

func hostPrepareCommand() *cobra.Command {
	p := &preparation{}
	var flags hostFlags
	var podCIDR, kubeconfig string
	c := &cobra.Command{
		Use:   "prepare ENDPOINT",
		Short: "Fix what can be fixed safely, so that a machine can be a node",
		Long: `Look at a machine, show what can be mended safely, and do it once you say yes:
containerd's CRI plugin where it is disabled, as Docker's package has it (containerd
restarts then, and containers go on), a network for pods where none is configured and
its programs are there, and the kernel's settings for forwarding.

What is done is recorded on the machine, with what was there before, and "bowline
host release" brings that back. The status is 0 when the check that follows finds no
failure, and 1 otherwise.`,
		Example: `  bowline host prepare --dry-run unix:///run/containerd/containerd.sock
  bowline host prepare --identity-file ~/.ssh/id_ed25519 --host-key SHA256:… \
    ssh://root@10.0.0.7/run/containerd/containerd.sock`,
		Args: arguments("ENDPOINT"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if podCIDR != "" {
				if p.node.Subnet, err = parseSubnet(podCIDR); err != nil {
					return fmt.Errorf("--pod-cidr %q is not a network such as 10.85.0.0/24", podCIDR)
				}
			}
			if kubeconfig != "" {
				if p.node.Name == "" || podCIDR != "" {
					return errors.New("--kubeconfig reads the podCIDR of the node that --node-name names; it is of no use with --pod-cidr")
				}
				if p.node.Subnet, err = nodeSubnet(c.Context(), kubeconfig, p.node.Name); err != nil {
					return err
				}
			}
			if p.check, err = flags.check(c, args[0]); err != nil {
				return err
			}
			p.flags, p.out = &flags, c.OutOrStdout()
			if p.who = newPerson(c.InOrStdin(), p.out, p.yes); !p.yes {
				p.who.answers(c.InOrStdin()) // an answer may be piped: each change was shown
			}
			quiet() // what the link would log is in the report
			return p.run(c.Context())
		},
	}
	flags.register(c)
	f := c.Flags()
	f.BoolVar(&p.dryRun, "dry-run", false, "show what would be done, and do nothing")
	f.BoolVarP(&p.yes, "yes", "y", false, "do it without asking")
	f.StringVar(&podCIDR, "pod-cidr", "", "the addresses of pods where a network is made (default: the node's podCIDR by --kubeconfig, or one by its name that overlaps no route)")
	f.StringVar(&p.node.Name, "node-name", "", "the node that the machine is to be, by whose name the addresses of pods are chosen (default: the machine's hostname)")
	f.StringVar(&kubeconfig, "kubeconfig", "", "read the podCIDR of the node --node-name with this credential, where the cluster has given it one")
	return c
}

func parseSubnet(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() || p != p.Masked() {
		return netip.Prefix{}, fmt.Errorf("%q is not an IPv4 network", text)
	}
	return p, nil
}

// nodeSubnet is the Node's podCIDR; not valid where there is no such Node yet, or the
// cluster gives its nodes none.
func nodeSubnet(ctx context.Context, kubeconfig, name string) (none netip.Prefix, err error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return none, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	config.Timeout = nodeTime
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return none, fmt.Errorf("kubeconfig %s: %w", kubeconfig, err)
	}
	return subnetOf(ctx, client, name)
}

func subnetOf(ctx context.Context, client kubernetes.Interface, name string) (none netip.Prefix, err error) {
	n, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return none, nil
	case err != nil:
		return none, fmt.Errorf("read the podCIDR of the Node %q: %w", name, err)
	}
	for _, text := range append([]string{n.Spec.PodCIDR}, n.Spec.PodCIDRs...) {
		if p, err := parseSubnet(text); err == nil {
			return p, nil
		}
	}
	return none, nil
}

// preparation is one run of the command.
type preparation struct {
	check       *hostcheck.Config
	flags       *hostFlags
	node        handover.Node
	dryRun, yes bool
	who         *person
	out         io.Writer
}

const (
	// rounds: the network can be looked at only when the runtime answers.
	rounds = 3
	// settleTime is how long a runtime may take to answer, and to see its network.
	settleTime  = 2 * time.Minute
	settlePause = time.Second
	nodeTime    = 30 * time.Second // of one request of a Node
)

func (p *preparation) run(ctx context.Context) error {
	report, found := hostcheck.Look(ctx, *p.check)
	for range rounds {
		plan, err := p.decide(ctx, found, report)
		if err != nil {
			return err
		}
		for _, m := range plan.Mends {
			fmt.Fprintln(p.out, pod.PrintableLines(m.Text()))
		}
		for _, note := range plan.Notes {
			fmt.Fprintf(p.out, "%s\n\n", pod.PrintableLines(note))
		}
		if p.dryRun {
			if len(plan.Mends)+len(plan.Notes) == 0 {
				fmt.Fprintln(p.out, "Nothing is to be mended here.")
			}
			return nil
		}
		if len(plan.Mends) == 0 {
			break
		}
		if err := p.who.agrees(ctx, "Do this?", "nothing was done; answer y, or give --yes"); err != nil {
			return err
		}
		if err := p.apply(ctx, plan.Mends); err != nil {
			return err
		}
		report, found = p.settle(ctx, plan.Mends)
	}
	if err := interrupted(ctx); err != nil {
		return err
	}
	if err := printReport(p.out, report, "text"); err != nil {
		return err
	}
	if !report.Fit {
		return errSaid
	}
	return nil
}

func interrupted(ctx context.Context) error {
	if ctx.Err() != nil {
		return errors.New("interrupted")
	}
	return nil
}

func (p *preparation) decide(ctx context.Context, found hostcheck.Found, report *hostcheck.Report) (plan handover.Plan, err error) {
	if err := interrupted(ctx); err != nil {
		return plan, err
	}
	if !found.Asked {
		if err := printReport(p.out, report, "text"); err != nil {
			return plan, err
		}
		return plan, errors.New("the machine cannot be prepared as long as it cannot be asked as root: mend the failures above")
	}
	err = p.onMachine(ctx, func(m *machine) error {
		root, err := realPath(ctx, m, p.flags.rootDir)
		if err != nil {
			return err
		}
		site, err := handover.Survey(ctx, m, root, found)
		plan = handover.Decide(found, site, p.node)
		return err
	})
	return plan, err
}

// onMachine does one thing to the machine, under a connection of its own.
func (p *preparation) onMachine(ctx context.Context, f func(m *machine) error) error {
	m, err := openChecked(ctx, p.check, p.flags.host(p.check))
	if err != nil {
		return err
	}
	return errors.Join(f(m), m.Close())
}

func (p *preparation) apply(ctx context.Context, mends []handover.Mend) error {
	return p.onMachine(ctx, func(m *machine) error {
		root, err := realPath(ctx, m, p.flags.rootDir)
		if err != nil {
			return err
		}
		return handover.Apply(ctx, m, root, mends)
	})
}

// settle looks until the mends show, or for long enough.
func (p *preparation) settle(ctx context.Context, mends []handover.Mend) (*hostcheck.Report, hostcheck.Found) {
	enough := time.After(settleTime)
	for {
		report, found := hostcheck.Look(ctx, *p.check)
		shows := found.Asked
		for _, m := range mends {
			switch m.Name {
			case handover.MendCRI:
				shows = shows && found.CRI
			case handover.MendNetwork:
				shows = shows && found.NetworkReady
			}
		}
		if shows {
			return report, found
		}
		select {
		case <-ctx.Done():
			return report, found
		case <-enough:
			return report, found
		case <-time.After(settlePause):
		}
	}
}
