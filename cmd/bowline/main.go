// Command bowline ties machines with a container runtime to a Kubernetes cluster
// as nodes. Each file here is one subcommand that reads as a recipe: parse,
// validate, wire, run.
package main

import (
	"context"
	"flag"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/klog/v2"
)

// version is set by the linker.
var version = "dev"

func main() {
	afterJoin()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends at once
	as := calledAs(os.Args[0])
	if status := explain(os.Stderr, as, rootCommand(as).ExecuteContext(ctx)); status != 0 {
		os.Exit(status)
	}
}

// each splits an error that was joined of several.
func each(err error) []error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// rootCommand is the whole program, called as the user has called it.
func rootCommand(as string) *cobra.Command {
	root := &cobra.Command{
		Use:   "bowline",
		Short: "Run machines with a container runtime as Kubernetes nodes",
		Long: `Bowline ties machines with a container runtime (a CRI socket) to a Kubernetes
cluster as nodes, without a kubelet.

Exit status: 0 on success, 1 on failure. "host check", "host prepare" and "host release"
fail, with nothing on standard error, when the report on standard output says why.`,
		Example: `  bowline run --config bowline.yaml     run the configured nodes
  bowline why pod web-0 -n shop         show why a pod runs, or does not
  bowline host add box-1 --ssh root@…   add a remote machine to a cluster in which Bowline runs
  bowline top                           hosts and their pods, live
  bowline configure --ssh root@…        write the configuration of a remote machine
  bowline host check ssh://root@…       check whether a machine can be a node
  bowline host prepare ssh://root@…     fix what can be fixed safely
  bowline host release ssh://root@…     remove everything of Bowline's from a machine
  bowline lab up                        a whole cluster on this machine, to try it on`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.Flags().Bool("version", false, "print the version") // without a shorthand: -v is the verbosity
	verbosity := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(verbosity)
	if v := verbosity.Lookup("v"); v != nil {
		v.Usage = "how much is logged, to standard error: 4 shows each login, 5 each call to a machine"
		root.PersistentFlags().AddGoFlag(v)
	}
	root.AddCommand(runCommand(), configureCommand(), whyCommand(), topCommand(), hostCommand(), joinCommand(), labCommand(findLab), versionCommand())
	root.SetHelpCommand(helpCommand())
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd("completion") // before the tree is completed
	usable(root)
	name(root, as)
	return root
}
