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
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:])
	if err == nil {
		return
	}
	var exit exitError
	if errors.As(err, &exit) {
		os.Exit(int(exit))
	}
	fmt.Fprintln(os.Stderr, "bowline: "+err.Error())
	os.Exit(1)
}

// exitError is the exit status of a program that was run for the user; it has
// said by itself what was wrong.
type exitError int

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", int(e)) }

func run(ctx context.Context, args []string) error {
	root := &cobra.Command{
		Use:           "bowline",
		Short:         "Tie any machine with a container runtime to a Kubernetes cluster",
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
	}
	root.AddCommand(runCommand(), whyCommand(), labCommand())
	root.SetArgs(args)
	return root.ExecuteContext(ctx)
}
