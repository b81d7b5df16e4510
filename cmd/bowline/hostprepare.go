package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"

	"github.com/bowline-k8s/bowline/handover"
	"github.com/bowline-k8s/bowline/hostcheck"
)

func hostPrepareCommand() *cobra.Command {
	p := &preparation{}
	var flags hostFlags
	var podCIDR string
	c := &cobra.Command{
		Use:   "prepare ENDPOINT",
		Short: "Mend what is safe to mend, so that a node can be made of a machine",
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
		Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) (err error) {
			if podCIDR != "" {
				if p.subnet, err = netip.ParsePrefix(podCIDR); err != nil || !p.subnet.Addr().Is4() || p.subnet != p.subnet.Masked() {
					return fmt.Errorf("--pod-cidr %q is not a network such as 10.85.0.0/24", podCIDR)
				}
			}
			if p.check, err = flags.check(c, args[0]); err != nil {
				return err
			}
			p.flags, p.in, p.out = &flags, bufio.NewReader(c.InOrStdin()), c.OutOrStdout()
			klog.SetSlogLogger(slog.New(slog.DiscardHandler)) // what the link would log is in the report
			return p.run(c.Context())
		},
	}
	flags.register(c)
	f := c.Flags()
	f.BoolVar(&p.dryRun, "dry-run", false, "show what would be done, and do nothing")
	f.BoolVar(&p.yes, "yes", false, "do it without asking")
	f.StringVar(&podCIDR, "pod-cidr", "", "the addresses of pods where a network is made: the node's podCIDR, if it is known (default: one that overlaps no route)")
	return c
}

// preparation is one run of the command.
type preparation struct {
	check       *hostcheck.Config
	flags       *hostFlags
	subnet      netip.Prefix
	dryRun, yes bool
	in          *bufio.Reader
	out         io.Writer
}

const (
	// rounds: the network can be looked at only when the runtime answers.
	rounds = 3
	// settleTime is how long a runtime may take to answer, and to see its network.
	settleTime  = 2 * time.Minute
	settlePause = time.Second
)

func (p *preparation) run(ctx context.Context) error {
	report, found := hostcheck.Look(ctx, *p.check)
	for range rounds {
		plan, err := p.decide(ctx, found, report)
		if err != nil {
			return err
		}
		for _, m := range plan.Mends {
			fmt.Fprintln(p.out, m.Text())
		}
		for _, note := range plan.Notes {
			fmt.Fprintf(p.out, "%s\n\n", note)
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
		if err := p.agree(); err != nil {
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
		site, err := handover.Survey(ctx, m, found)
		plan = handover.Decide(found, site, p.subnet)
		return err
	})
	return plan, err
}

// onMachine does one thing to the machine, under a connection of its own.
func (p *preparation) onMachine(ctx context.Context, f func(m *machine) error) error {
	m, err := openMachine(ctx, p.flags.host(p.check), nil)
	if err != nil {
		return err
	}
	return errors.Join(f(m), m.Close())
}

// agree asks whether to go on.
func (p *preparation) agree() error {
	if p.yes {
		return nil
	}
	fmt.Fprint(p.out, "Do this? [y/N] ")
	answer, err := p.in.ReadString('\n')
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	if err != nil {
		fmt.Fprintln(p.out)
	}
	return errors.New("nothing was done; say y, or give --yes")
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
