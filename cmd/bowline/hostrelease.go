package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/bowline-k8s/bowline/connect"
	"github.com/bowline-k8s/bowline/pod"
	"github.com/bowline-k8s/bowline/release"
)

func hostReleaseCommand() *cobra.Command {
	r := &release.Release{}
	var flags hostFlags
	c := &cobra.Command{
		Use:   "release ENDPOINT",
		Short: "Release a host: stop its pods and remove everything of Bowline",
		Long: `Stop every pod that Bowline runs on a host, each with its own grace period, and remove
everything that Bowline left there: sandboxes, containers, volumes, logs, cgroups and the
owner file. Then undo what "bowline host prepare" did. Containers that are not Bowline's
and images stay.

With --kubeconfig the node is drained first: it is cordoned, and its pods are evicted as
their disruption budgets allow. The Node object is deleted at the end.

Stop the Bowline that manages the host first: as long as it runs, the release is refused
with the name of that process. To continue an interrupted release, run it again. The exit
status is 0 when nothing of Bowline is left, and 1 otherwise.`,
		Example: `  bowline host release unix:///run/containerd/containerd.sock
  bowline host release --kubeconfig ~/.kube/config --identity-file ~/.ssh/id_ed25519 \
    --host-key SHA256:… ssh://root@10.0.0.7/run/containerd/containerd.sock`,
		Args: arguments("ENDPOINT"),
		RunE: func(c *cobra.Command, args []string) error {
			if r.MaxGrace < 0 || r.DrainTime <= 0 {
				return errors.New("--max-grace and --drain-timeout must be positive")
			}
			if r.NodeName != "" && r.Kubeconfig == "" {
				return errors.New("--node-name: only with --kubeconfig")
			}
			checked, err := flags.check(c, args[0])
			if err != nil {
				return err
			}
			r.Cfg = flags.nodeConfig(checked)
			r.Open = func(ctx context.Context) (*connect.Host, error) { return openHost(ctx, checked, r.Cfg) }
			say := func(text string) { fmt.Fprintln(c.OutOrStdout(), pod.PrintableLines(text)) }
			r.Step = func(s release.Step) { say(stepText(s)) }
			quiet() // what the link would log is in the returned errors
			done, err := r.Run(c.Context())
			if err != nil {
				return err
			}
			say("\n" + release.Text(done.Changes))
			if len(done.Left) > 0 {
				say("Left of Bowline:\n  " + strings.Join(done.Left, "\n  "))
				return errReported
			}
			say("Nothing of Bowline is left. The pulled images stay in the runtime (crictl rmi --prune removes them).")
			return nil
		},
	}
	flags.register(c)
	f := c.Flags()
	f.StringVar(&r.Kubeconfig, "kubeconfig", "", "a kubeconfig with which to drain and delete the node")
	f.StringVar(&r.NodeName, "node-name", "", "the node to drain and delete (default: the host's record of it)")
	f.DurationVar(&r.DrainTime, "drain-timeout", 5*time.Minute, "how long to retry refused evictions")
	f.DurationVar(&r.MaxGrace, "max-grace", 0, "the longest grace period of a pod")
	f.BoolVar(&r.Keep, "keep-preparation", false, "keep the changes of host prepare")
	return c
}

// stepText is a step of a release as a line.
func stepText(s release.Step) string {
	switch s.What {
	case release.Recognized:
		return fmt.Sprintf("This host is %s.", s.Object)
	case release.NoNode:
		return "This host has no node of Bowline."
	case release.NodeMissing:
		return fmt.Sprintf("The cluster has no node %q any more.", s.Object)
	case release.NodeForeign:
		return fmt.Sprintf("The cluster's node %q does not belong to Bowline: it and its pods stay.", s.Object)
	case release.Cordoned:
		return fmt.Sprintf("Node %s is cordoned.", s.Object)
	case release.Evicted:
		return "evicted " + s.Object
	case release.Stopping:
		return "stopping " + s.Object
	case release.HookFailed:
		return fmt.Sprintf("preStop of %s in %s failed", s.Container, s.Object)
	case release.NodeDeleted:
		return fmt.Sprintf("Node %s is deleted.", s.Object)
	}
	return s.Object // of Undone
}
