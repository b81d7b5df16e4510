package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/hint"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/prepare"
)

func hostPrepareCommand() *cobra.Command {
	p := &prepare.Preparation{}
	var flags hostFlags
	var podCIDR, kubeconfig string
	var yes bool
	c := &cobra.Command{
		Use:   "prepare ENDPOINT",
		Short: "Fix what can be fixed safely, so that a machine can be a node",
		Long: `Check a machine, show what can be fixed safely, and fix it after you confirm: containerd's
CRI plugin if it is disabled, as in Docker's package (containerd restarts, and containers
keep running), a pod network if none is configured and the CNI plugins are installed, and
the kernel settings for forwarding. A new pod network needs --node-name or --pod-cidr.

The command records each change and the previous state on the machine, and "bowline host
release" restores that state. The exit status is 0 when the check that follows finds no
failure, and 1 otherwise.`,
		Example: `  bowline host prepare --dry-run --node-name box-1 unix:///run/containerd/containerd.sock
  bowline host prepare --identity-file ~/.ssh/id_ed25519 --host-key SHA256:… \
    --node-name box-1 ssh://root@10.0.0.7/run/containerd/containerd.sock`,
		Args: arguments("ENDPOINT"),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if podCIDR != "" {
				if p.Node.Subnet, err = prepare.ParseSubnet(podCIDR); err != nil {
					return fmt.Errorf("--pod-cidr %q is not a network such as 10.85.0.0/24", podCIDR)
				}
			}
			if kubeconfig != "" {
				if p.Node.Name == "" || podCIDR != "" {
					return hint.Add(errors.New("--kubeconfig reads the podCIDR of the node --node-name"), "set --node-name, and do not combine it with --pod-cidr")
				}
				if p.Node.Subnet, err = prepare.NodeSubnet(c.Context(), kubeconfig, p.Node.Name); err != nil {
					return err
				}
			}
			if p.Check, err = flags.check(c, args[0]); err != nil {
				return err
			}
			checked, out := p.Check, c.OutOrStdout()
			p.RootDir = flags.rootDir
			p.Open = func(ctx context.Context) (*connect.Host, error) {
				return openHost(ctx, checked, flags.nodeConfig(checked))
			}
			p.Show = func(text string) { fmt.Fprintln(out, pod.PrintableLines(text)) }
			who := newPerson(c.InOrStdin(), out, yes)
			if !yes {
				who.answers(c.InOrStdin()) // answers may be piped: each change was shown
			}
			p.Agree = func(ctx context.Context) error {
				return who.agrees(ctx, "Do this?", "nothing was changed; answer y, or set --yes")
			}
			quiet() // what the link would log is in the report
			report, err := p.Run(c.Context())
			if report != nil {
				if err := printReport(out, report, "text"); err != nil {
					return err
				}
			}
			if err == nil && report != nil && !report.Fit {
				return errReported
			}
			return err
		},
	}
	flags.register(c)
	failSwapOnFlag(c, &flags.failSwapOn)
	f := c.Flags()
	f.BoolVar(&p.DryRun, "dry-run", false, "show the changes without making them")
	f.BoolVarP(&yes, "yes", "y", false, "do it without asking")
	f.StringVar(&podCIDR, "pod-cidr", "", "the pod CIDR of a new pod network (default: the node's podCIDR, or one derived from --node-name)")
	f.StringVar(&p.Node.Name, "node-name", "", "the name of the node, from which the pod CIDR of a new pod network is derived")
	f.StringVar(&kubeconfig, "kubeconfig", "", "a kubeconfig with which to read the podCIDR of the node --node-name")
	return c
}
