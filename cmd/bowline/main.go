// Command bowline ties machines with a container runtime to a Kubernetes cluster
// as nodes. Each file here is one subcommand that reads as a recipe: parse,
// validate, wire, run.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// version is set by the linker.
var version = "dev"

func main() {
	afterJoin()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends at once
	err := run(ctx, os.Args[1:])
	if err == nil {
		return
	}
	if errors.Is(err, errSaid) {
		os.Exit(1)
	}
	for _, one := range each(err) {
		fmt.Fprintln(os.Stderr, calledAs(os.Args[0])+": "+one.Error())
	}
	os.Exit(1)
}

// each splits an error that was joined of several.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

func run(ctx context.Context, args []string) error {
	root := rootCommand(calledAs(os.Args[0]))
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}

// rootCommand is the whole program, called as the user has called it.
func rootCommand(as string) *cobra.Command {
	root := &cobra.Command{
		Use:   "bowline",
		Short: "Tie any machine with a container runtime to a Kubernetes cluster",
		Long: `Bowline ties machines with a container runtime (a CRI socket) to a Kubernetes
cluster as nodes, without a kubelet.`,
		Example: `  bowline run --config bowline.yaml     be the node
  bowline why pod default/web-0         ask it why a pod does what it does
  bowline host add box-1 --ssh root@…   make a node of a far machine, in a cluster with Bowline
  bowline top                           hosts and their pods, live
  bowline configure --ssh root@…        write the configuration of a far machine
  bowline host check ssh://root@…       see whether a node can be made of a machine
  bowline host prepare ssh://root@…     mend what is safe to mend for that
  bowline host release ssh://root@…     hand the machine back as it was
  bowline lab up                        a whole cluster on this machine, to try it on`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(runCommand(), configureCommand(), whyCommand(), topCommand(), hostCommand(), joinCommand(), labCommand(), versionCommand())
	name(root, as)
	return root
}
