// Command bowline-lifeline is the end of a lifeline in a pod on a remote host (package helper). Bowline dials its
// socket over the SSH connection to the host.
//
// Exit status: 0 after SIGTERM, when the rules are removed; 1 on failure; 2 if the flags are wrong.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"k8s.io/klog/v2"
)

const (
	statusFailed = 1
	statusUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal kills the process
	os.Exit(mainStatus(ctx, os.Args[1:], os.Stderr))
}

// mainStatus runs the command, and returns its exit status.
func mainStatus(ctx context.Context, args []string, stderr io.Writer) int {
	o, err := parse(args, stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "bowline-lifeline: %v\n", err)
		return statusUsage
	}
	if err := run(klog.NewContext(ctx, klog.Background()), o); err != nil {
		fmt.Fprintf(stderr, "bowline-lifeline: %v\n", err)
		return statusFailed
	}
	return 0
}
